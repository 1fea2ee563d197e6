import os
import pathlib

import pytest

from strategies.common.errors import UsageError
from trainers.inputs.record_paths import find_files


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Returns the working directory, with files that nothing reads."""
    for name in (
        "a/2.tfrecord",
        "a/1.tfrecord",
        "a/3.tfrecord.gz",
        "a/notes.txt",
        "b/deep/x.tfrecord",
        "c/1.tfrecord",
        "with,comma.tfrecord",
        "star[1].tfrecord",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "4.tfrecord").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("a/1.tfrecord")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("data_path", "expected"),
    [
        ("a/2.tfrecord", ["a/2.tfrecord"]),
        ("a/notes.txt", ["a/notes.txt"]),
        ("a", ["a/1.tfrecord", "a/2.tfrecord", "a/3.tfrecord.gz"]),
        ("a/*.tfrecord", ["a/1.tfrecord", "a/2.tfrecord"]),
        ("a/[12].*", ["a/1.tfrecord", "a/2.tfrecord"]),
        ("**/x.tfrecord", ["b/deep/x.tfrecord"]),
        ("c,a/2.tfrecord", ["c/1.tfrecord", "a/2.tfrecord"]),
        ("c/*,a/?.tfrecord", ["c/1.tfrecord", "a/1.tfrecord", "a/2.tfrecord"]),
        ("with,comma.tfrecord", ["with,comma.tfrecord"]),
        ("star[1].tfrecord", ["star[1].tfrecord"]),
    ],
)
def test_a_path_stands_for_files(
    folder: pathlib.Path, data_path: str, expected: list[str]
) -> None:
    assert [str(path) for path in find_files(data_path, "data_path")] == expected


@pytest.mark.parametrize(
    ("data_path", "problem"),
    [
        ("missing", "--data_path=missing does not exist"),
        ("a,missing", "--data_path=a,missing: 'missing' does not exist"),
        ("a,,c", "--data_path=a,,c: '' is no path"),
        ("a/*.record", "--data_path=a/*.record matches no file"),
        ("empty", "--data_path=empty is a folder without *.tfrecord files"),
        ("b", "--data_path=b is a folder without *.tfrecord files"),
        (os.devnull, f"--data_path={os.devnull} is neither a file nor a folder"),
        ("a,a/1.tfrecord", "--data_path=a,a/1.tfrecord has 'a/1.tfrecord' twice"),
        ("link,a/1.tfrecord", "has 'a/1.tfrecord', as 'link', twice"),
        ("n" * 300, "cannot be read (File name too long)"),
    ],
)
def test_a_path_that_stands_for_none_is_refused(
    folder: pathlib.Path, data_path: str, problem: str
) -> None:
    with pytest.raises(UsageError) as raised:
        find_files(data_path, "data_path")
    assert problem in str(raised.value)
    assert str(raised.value).endswith(("separated by commas.", "one of them out."))
