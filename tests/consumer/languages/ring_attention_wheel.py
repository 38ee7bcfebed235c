"""ring_attention_wheel: builds a wheel of the modules and the library, for pip.

The wheel is for machines like this one: of the same processor family, with a C library that is not
older, and with the runtime of OpenMP (libgomp.so.1). No tag that PyPI accepts promises all that, so
the tag is linux_..., which PyPI refuses and pip installs. libringattn_mpi is left out, because it
works only with the MPI that it was built for.
"""
import base64
import hashlib
import sysconfig
import zipfile
from pathlib import Path

from ring_attention import SERIES, find, lib

HERE = Path(__file__).resolve().parent


def build_wheel(folder, config_settings=None, metadata_directory=None):
    """Writes the wheel into a folder and returns its name."""
    version = lib.ra_version().decode()
    tag = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
    library = Path(find("ringattn"))
    if not library.exists():
        raise FileNotFoundError(f"where is {library}? Set RA_LIB to its folder")
    licence = next(above / "LICENSE" for above in HERE.parents if (above / "LICENSE").exists())
    info = f"ringattn-{version}.dist-info/"
    files = {name: (HERE / name).read_bytes()
             for name in ("ring_attention.py", "ring_attention_torch.py")}
    files[f"ringattn.libs/libringattn.so.{SERIES}"] = library.read_bytes()
    files[info + "licenses/LICENSE"] = licence.read_bytes()
    files[info + "METADATA"] = (f"Metadata-Version: 2.1\nName: ringattn\nVersion: {version}\n"
                                "Summary: Ring attention on the host\nLicense: MIT\n"
                                "Requires-Dist: numpy\n").encode()
    files[info + "WHEEL"] = ("Wheel-Version: 1.0\nGenerator: ring_attention_wheel\n"
                             f"Root-Is-Purelib: false\nTag: {tag}\n").encode()
    record = [f"{name},sha256={digest(data)},{len(data)}" for name, data in files.items()]
    files[info + "RECORD"] = "\n".join([*record, info + "RECORD,,", ""]).encode()
    name = f"ringattn-{version}-{tag}.whl"
    with zipfile.ZipFile(Path(folder) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)
    return name


def digest(data):
    """The sum of a file as RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
