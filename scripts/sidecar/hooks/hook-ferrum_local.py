"""Everything of ours: the engine and the server's own processes are imported by name."""

from PyInstaller.utils.hooks import collect_data_files, collect_submodules

hiddenimports = collect_submodules("ferrum_local")
datas = collect_data_files("ferrum_local")
