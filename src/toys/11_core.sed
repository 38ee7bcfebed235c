# Makes C++ of CUDA: a launch becomes a call. 11_core.h has the other words.
s/\([^ ]*\)<<<\(.*\), \(.*\), .*, stream>>>(\(.*\));/grid(\2, \3, [=] { \1(\4); });/
s/\([^ ]*\)<<<\(.*\), \(.*\)>>>(\(.*\));/grid(\2, \3, [=] { \1(\4); });/
/extern __shared__/d
