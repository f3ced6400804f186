"""Convert the starter embedding model; see ``ferrum_local/llm/starter_embedding.py``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from files import exclusive  # first: it has the package of this checkout found

# isort: split
from ferrum_local.llm.starter_embedding import NAME, ConversionError, convert
from progress import stop_on_sigterm

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quiet", action="store_true", help="say nothing when nothing is done")
    parser.add_argument("--models-dir", type=Path, default=ROOT / "models")
    options = parser.parse_args(arguments)
    stop_on_sigterm()
    try:
        with exclusive(options.models_dir / ".lock", "another fetch of models"):
            if convert(options.models_dir):
                print(f"  {NAME}: converted to GGUF, f16 and q8_0", flush=True)
            elif not options.quiet:
                print(f"  {NAME}: in place")
    except (ConversionError, OSError, ValueError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
