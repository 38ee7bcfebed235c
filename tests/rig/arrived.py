"""arrived: how many messages of a timeline (--trace) had arrived while their rank was still folding tiles.

See 03-ring: python3 tests/rig/arrived.py TRACE.json"""
import json
import sys

events = [event for event in json.load(open(sys.argv[1], encoding="utf-8")) if event["ph"] == "X"]
folds = [event for event in events if event["name"] in ("forward", "backward")]
arrivals = [(event["pid"], event["ts"] + event["dur"]) for event in events if event["name"] == "receive"]
hidden = [any(fold["pid"] == rank and fold["ts"] <= end <= fold["ts"] + fold["dur"] for fold in folds)
          for rank, end in arrivals]
print(sum(hidden), "of", len(hidden), "messages arrived while tiles were folded")
