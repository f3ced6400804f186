"""The data of espeak-ng, and the network that Arabic voices need. Not what trains voices."""

from PyInstaller.utils.hooks import collect_data_files

datas = collect_data_files("piper", includes=["espeak-ng-data/**", "tashkeel/**", "hebrew/**"])
excludedimports = ["piper.train", "onnx"]
