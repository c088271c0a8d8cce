"""The packaging facts stand in settings.ini; this file hands them to setuptools."""
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

settings = ConfigParser(delimiters=["="], interpolation=None)
settings.read(Path(__file__).with_name("settings.ini"), encoding="utf-8")
cfg = settings["DEFAULT"]
suffix = "_requirements"
extras = {k[: -len(suffix)]: v.split() for k, v in cfg.items() if k.endswith(suffix)}
dev = extras.pop("dev", [])
extras["all"] = sorted({r for v in extras.values() for r in v})
extras["dev"] = sorted({*extras["all"], *dev})

setup(
    name=cfg["lib_name"],
    version=cfg["version"],
    packages=find_packages(include=["fairmedfm", "fairmedfm.*"]),
    package_data={"": ["*.csv"], "fairmedfm": ["weights/*/*", "templates/*", "configs/*"]},
    install_requires=cfg["requirements"].split(),
    extras_require=extras,
    author=cfg["author"],
    author_email=cfg["author_email"],
    entry_points={"console_scripts": cfg["console_scripts"].split(), "nbdev": ["fairmedfm=fairmedfm._modidx:d"]},
)
