import check_layers
import pytest

TABLE = """
| rank | folder | owns | must not contain |
|---|---|---|---|
| 0 | `base` | errors | domain words |
| 1 | `left` | values | algorithms |
| 1 | `right` | loops | values |
| 4 | `top` | all | nothing |
"""


@pytest.fixture
def tree(tmp_path):
    """A tree that obeys the law, and a function that writes one more file into it."""

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return tmp_path

    write("ARCHITECTURE.md", TABLE)
    for folder in ("base", "left", "right", "top"):
        write(f"src/{folder}/{folder}.h", "#pragma once\n#include <vector>\n")
    write("include/deltawire/one.h", "#pragma once\n#include <span>\n")
    return write


def only_problem(root):
    problems = check_layers.check(root)
    assert len(problems) == 1, problems
    return problems[0]


def test_lower_ranks_and_the_own_folder_are_allowed(tree):
    root = tree("src/top/a.cc", '#include "top/top.h"\n#include "left/left.h"\n#include "deltawire/one.h"\n')
    tree(
        "src/top/CMakeLists.txt", "deltawire_library(top SOURCES a.cc DEPS deltawire_left) # deltawire_top\n"
    )
    assert check_layers.check(root) == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('#include "right/right.h"', "left (rank 1) may not include right (rank 1)"),
        ('  #  include "top/top.h"', "left (rank 1) may not include top (rank 4)"),
        ('#include "elsewhere/x.h"', "elsewhere is not in the module table"),
        ('#include "left.h"', 'as in "left/left.h"'),
        ('#include "left/../right/right.h"', "written from src/"),
        ('#include "deltawire/one.h"', "public headers are for rank 4 up"),
    ],
)
def test_every_other_include_is_an_error(tree, line, says):
    problem = only_problem(tree("src/left/deep/a.cc", f"\n{line}\n"))
    assert problem.startswith("src/left/deep/a.cc:2: ")
    assert says in problem


def test_cmake_dependencies_obey_the_same_law(tree):
    root = tree("src/left/CMakeLists.txt", "deltawire_library(left SOURCES a.cc DEPS deltawire_right)\n")
    assert "deltawire_right (rank 1)" in only_problem(root)


def test_a_folder_outside_the_table_is_an_error(tree):
    assert "src/stray: not in the module table" in only_problem(tree("src/stray/a.h", ""))


def test_a_row_without_a_folder_is_an_error(tree):
    root = tree("ARCHITECTURE.md", TABLE + "| 2 | `ghost` | nothing | all |\n")
    assert "src/ghost, which does not exist" in only_problem(root)


@pytest.mark.parametrize("row", ["", "| 2 | `base` | again | x |\n"])
def test_a_table_that_is_missing_or_names_a_folder_twice_is_refused(tree, row):
    root = tree("ARCHITECTURE.md", TABLE + row if row else "no table here\n")
    with pytest.raises(ValueError, match="module table"):
        check_layers.check(root)


@pytest.mark.parametrize(
    "line",
    ['#include "base/base.h"', "#include <fmt/format.h>", "#ifdef FEATURE", "#if __cplusplus > 202002L"],
)
def test_public_headers_show_nothing_of_ours_or_a_vendors(tree, line):
    assert only_problem(tree("include/deltawire/two.h", line + "\n")).startswith("include/deltawire/two.h:1")


def test_thirteen_public_headers_are_too_many(tree):
    for number in range(12):
        root = tree(f"include/deltawire/h{number}.h", "#pragma once\n")
    assert "13 headers; at most 12" in only_problem(root)
