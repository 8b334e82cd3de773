from __future__ import annotations

from pathlib import Path

import pytest

from core_engine.errors import ConfigurationError
from examples.flights.cache import build, fingerprint, is_intact


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build(tmp_path / "built", fill)
    return tmp_path / "built"


def fill(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "a").write_bytes(b"one")
    (folder / "b").write_bytes(b"two")


class TestFolder:
    def test_what_was_built_is_whole_and_alone(self, folder: Path) -> None:
        assert is_intact(folder)
        assert (folder / "deep" / "a").read_bytes() == b"one"
        assert [path.name for path in folder.parent.iterdir()] == ["built"]

    def test_a_folder_that_is_not_there_is_not_intact(self, tmp_path: Path) -> None:
        assert not is_intact(tmp_path / "absent")

    @pytest.mark.parametrize("name", ["deep/a", "b", "digests.json"])
    def test_a_changed_or_lost_file_is_seen(self, folder: Path, name: str) -> None:
        (folder / name).write_bytes(b"TWO")
        assert not is_intact(folder)
        (folder / name).unlink()
        assert not is_intact(folder)

    def test_an_empty_record_vouches_for_nothing(self, folder: Path) -> None:
        (folder / "digests.json").write_bytes(b"{}")
        assert not is_intact(folder)

    def test_building_again_replaces_what_was_there(self, folder: Path) -> None:
        def fill_otherwise(new: Path) -> None:
            (new / "c").write_bytes(b"three")

        build(folder, fill_otherwise)
        assert is_intact(folder)
        assert sorted(path.name for path in folder.iterdir()) == ["c", "digests.json"]
        assert [path.name for path in folder.parent.iterdir()] == ["built"]

    def test_a_build_that_fails_leaves_what_was_there_and_nothing_else(self, folder: Path) -> None:
        def fail(new: Path) -> None:
            fill(new)
            raise ConfigurationError("the wheel is not installed")

        with pytest.raises(ConfigurationError):
            build(folder, fail)
        assert is_intact(folder)
        assert [path.name for path in folder.parent.iterdir()] == ["built"]

    def test_of_two_builds_at_once_a_whole_one_stays(self, folder: Path) -> None:
        def fill_while_another_finishes(new: Path) -> None:
            build(folder, fill)
            fill(new)

        build(folder, fill_while_another_finishes)
        assert is_intact(folder)


class TestFingerprint:
    def test_it_follows_content_not_place(self, tmp_path: Path) -> None:
        prints = []
        for place in ("here", "there"):
            (tmp_path / place).mkdir()
            file = tmp_path / place / "data.csv"
            file.write_bytes(b"1")
            prints.append(fingerprint([file], [], []))
        assert prints[0] == prints[1]
        file.write_bytes(b"2")
        assert fingerprint([file], [], []) != prints[0]

    def test_it_follows_modules_and_packages(self) -> None:
        prints = {
            fingerprint([], ["examples.flights.clock"], []),
            fingerprint([], ["examples.flights.data"], []),
            fingerprint([], [], ["numpy"]),
            fingerprint([], [], ["no-such-package"]),
        }
        assert len(prints) == 4

    def test_a_lost_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"data\.csv cannot be read"):
            fingerprint([tmp_path / "data.csv"], [], [])
