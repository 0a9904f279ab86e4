import argparse
import sys
from pathlib import Path

from cascade_rl.kernels import bench

parser = argparse.ArgumentParser(prog="python -m cascade_rl.kernels.bench", description="Kernel benchmark.")
parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
if __name__ == "__main__":
    sys.exit(bench.run(parser.parse_args().json))
