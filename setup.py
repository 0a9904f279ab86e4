"""The distribution `cascade-rl` with the import package `cascade_rl`. Every top-level folder is a sub-package of it.

For example, `engine/models/` is imported as `cascade_rl.engine.models`. A top-level import name such as `kernels` would
collide with a package that transformers looks for.
"""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def requirements(kind: str) -> list[str]:
    """What the .in file of that name asks for itself, without the files that it includes."""
    lines = (ROOT / "requirements" / f"{kind}.in").read_text().splitlines()
    return [own for line in lines if (own := line.partition("#")[0].strip()) and not own.startswith("-r")]


EXTRAS = ("cpu", "cuda", "slurm", "swe", "wandb", "mlflow", "otel")
folders = find_packages(str(ROOT), exclude=["tests", "tests.*"])

setup(
    name="cascade-rl",
    version="0.1.0",
    description="Post-training of mixture-of-experts models on Megatron-Core and vLLM",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    author="Cascade's developers",
    keywords=[
        "post-training",
        "reinforcement learning",
        "distillation",
        "GRPO",
        "mixture of experts",
        "Megatron",
        "vLLM",
    ],
    project_urls={
        "Paper (Nemotron-Cascade)": "https://arxiv.org/abs/2512.13607",
        "Paper (Nemotron-Cascade 2)": "https://arxiv.org/abs/2603.19220",
    },
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Environment :: GPU :: NVIDIA CUDA",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    python_requires=">=3.12",
    packages=[f"cascade_rl.{folder}" for folder in folders],
    package_dir={f"cascade_rl.{folder}": folder for folder in folders if "." not in folder},
    package_data={
        "cascade_rl.engine.models": ["published/*/config.json"],
        "cascade_rl.kernels": ["*.json"],
        "cascade_rl.launchers": ["*.toml"],
        "cascade_rl.launchers.bench": ["*.json"],
        "cascade_rl.launchers.cli": ["new_run/*.template"],
        "cascade_rl.launchers.plan": ["*.toml"],
        "cascade_rl.launchers.report": ["web/*"],
        "cascade_rl.rl_stages.benchmarks": ["suites/*.toml"],
        "cascade_rl.rl_stages.data.chat_templates": ["*.jinja"],
    },
    install_requires=requirements("runtime"),
    extras_require={kind: requirements(kind) for kind in EXTRAS},
    entry_points={
        "console_scripts": [
            "nemo-run = cascade_rl.launchers.cli.launch:main",
            "cascade = cascade_rl.launchers.cli.main:main",
        ]
    },
)
