import json

import check_headers
import compile_commands
import pytest


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "src/base/a.cc"
    source.parent.mkdir(parents=True)
    source.write_text("")
    build = tmp_path / "build"
    build.mkdir()
    command = f"ccache g++ -I{tmp_path}/src -std=c++20 -MD -MT a.o -MF a.d -o a.o -c {source}"
    entry = {"directory": str(build), "file": str(source), "command": command}
    (build / "compile_commands.json").write_text(json.dumps([entry]))
    (source.parent / "good.h").write_text("#pragma once\n#include <vector>\nstd::vector<int> Get();\n")
    return tmp_path


def test_options_that_name_outputs_are_dropped(tree):
    ((source, flags),) = compile_commands.load(tree / "build", tree).items()
    assert source == tree / "src/base/a.cc"
    assert flags == [f"-I{tree}/src", "-std=c++20"]


def test_a_header_that_needs_another_is_found(tree):
    (tree / "src/base/bad.h").write_text("#pragma once\nstd::vector<int> Get();\n")
    problems, total, _ = check_headers.check(tree, tree / "build", 1)
    assert total == 2
    assert len(problems) == 1
    assert problems[0].startswith("src/base/bad.h does not compile alone")


def test_only_what_changed_is_compiled_again(tree):
    (tree / "src/base/user.h").write_text('#pragma once\n#include "base/good.h"\n')
    (tree / "src/base/apart.h").write_text("#pragma once\n")
    assert check_headers.check(tree, tree / "build", 1) == ([], 3, 3)
    assert check_headers.check(tree, tree / "build", 1) == ([], 3, 0)
    (tree / "src/base/good.h").write_text("#pragma once\n#error broken\n")
    problems, _, compiled = check_headers.check(tree, tree / "build", 1)
    assert compiled == 2  # the header and its user
    assert len(problems) == 2
    assert check_headers.check(tree, tree / "build", 1)[2] == 2  # a failure is not remembered


def test_highway_bodies_are_left_out(tree):
    (tree / "src/base/body-inl.h").write_text("not C++ on its own\n")
    assert check_headers.check(tree, tree / "build", 1)[:2] == ([], 1)
