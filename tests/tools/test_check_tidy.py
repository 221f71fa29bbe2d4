import json
import shutil

import check_tidy
import pytest

if shutil.which(check_tidy.CLANG_TIDY) is None:
    pytest.skip("clang-tidy-19 comes with ./dev lint", allow_module_level=True)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copy(check_tidy.ROOT / ".clang-tidy", tmp_path)
    (tmp_path / "src/base").mkdir(parents=True)
    (tmp_path / "build").mkdir()
    sources = [tmp_path / "src/base/a.cc", tmp_path / "src/base/a_test.cc"]
    entries = [
        {"directory": str(tmp_path), "file": str(source), "command": f"g++ -std=c++20 -c {source}"}
        for source in sources
    ]
    (tmp_path / "build/compile_commands.json").write_text(json.dumps(entries))
    sources[1].write_text("int wrongName() { return 0; }\n")
    return tmp_path


def test_a_clean_source_passes_once(tree):
    (tree / "src/base/a.cc").write_text("int TheAnswer() { return 42; }\n")
    assert check_tidy.check(tree, tree / "build", 1) == ([], 1, 1)
    assert check_tidy.check(tree, tree / "build", 1) == ([], 1, 0)


def test_a_wrong_name_is_found(tree):
    (tree / "src/base/a.cc").write_text("int wrongName() { return 42; }\n")
    (problem,), _, _ = check_tidy.check(tree, tree / "build", 1)
    assert "invalid case style for function 'wrongName'" in problem
