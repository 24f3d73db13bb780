"""A check of an installed distribution: it is whole, of this environment, and has an engine."""

import importlib.metadata
import importlib.util
import sys
from pathlib import Path

import postroom

LICENCES = {"LICENSE", "htmx.LICENSE", "uPlot.LICENSE"}
WANTED = {"postroom/py.typed", "postroom/web/templates/base.html", *LICENCES}

place = Path(postroom.__file__)
if not place.is_relative_to(sys.prefix):
    sys.exit(f"{place} is not of the environment {sys.prefix}")
files = [str(each) for each in importlib.metadata.files("postroom") or ()]
if missing := [each for each in WANTED if not any(name.endswith(each) for name in files)]:
    sys.exit(f"missing: {', '.join(missing)}")
own = ("postroom/", "postroom-", "../")  # the last is the command
if strange := [each for each in files if not each.startswith(own)]:
    sys.exit(f"it installs more than the package: {', '.join(strange)}")
engines = [each for each in ("plyvel", "rocksdict") if importlib.util.find_spec(each)]
if not engines:
    sys.exit("no engine is installed")
sys.stdout.write(f"postroom {postroom.__version__} with {', '.join(engines)}\n")
