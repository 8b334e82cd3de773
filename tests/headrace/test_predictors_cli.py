"""`headrace predictors` as typed: what is printed, and what is one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from core_engine.predictors.registry import Registry
from core_engine.predictors.tables import open_database
from core_engine.settings import Settings
from headrace.migrations import upgrade
from tests.core_engine.predictors.doubles import delay_predictor, notice_predictor
from tests.core_engine.predictors.test_label_prompt import predictor as label_predictor
from tests.headrace.test_cli import headrace, sentence_of


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Two versions of a predictor that the language model scores, and one that writes: no engine is asked."""
    settings = Settings(state_dir=tmp_path)
    upgrade(settings.database_url)
    database = open_database(settings.database_url)
    declared = {"prompt": "From {origin}?", "features": (), "columns": delay_predictor(tmp_path).columns[:2]}
    for version in (1, 2):
        Registry(database).register(label_predictor(folder=tmp_path, name="asked", version=version, **declared))
    Registry(database).register(notice_predictor())
    database.dispose()
    return tmp_path


def said(*arguments: str, state: Path) -> str:
    done = headrace("predictors", *arguments, state=state)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_versions_go_into_traffic_and_back(state: Path) -> None:
    assert said("alias", "asked", "live", "1", state=state) == "asked: live -> 1\n"
    told = said("alias", "asked", "canary", "2", "--percent", "5", state=state)
    assert told == "asked: canary -> 2 for 5 % of the entities\n"
    assert said("list", state=state) == "asked:1\tlive\nasked:2\tcanary 5 %\nnotice:3\n"
    assert said("unalias", "asked", "canary", state=state) == "asked: canary is gone\n"
    said("alias", "asked", "live", "2", state=state)
    assert said("rollback", "asked", state=state).startswith("asked: live 2 -> 1; ")
    assert "was rolled back already" in sentence_of(headrace("predictors", "rollback", "asked", state=state))
    causes = [line.split("\t")[1:] for line in said("history", "asked", state=state).splitlines()]
    assert [cause[:3] for cause in causes] == [
        ["live", "1", "rollback"],
        ["live", "2", "set"],
        ["canary", "-", "removed"],
        ["canary", "2", "set"],
        ["live", "1", "set"],
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("alias", "asked", "canary", "2"), "a canary's percent is None"),
        (("alias", "asked", "live", "2", "--percent", "5"), "alias 'live' takes no share"),
        (("rollback", "asked"), "alias 'live' of predictor 'asked' is unknown"),
        (("compare", "asked"), "nothing of predictor 'asked' was compared yet"),
        (("compare", "nobody"), "predictor 'nobody' is unknown; known: asked, notice"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(state: Path, arguments: tuple[str, ...], words: str) -> None:
    if arguments[0] == "alias":
        said("alias", "asked", "live", "1", state=state)
    assert words in sentence_of(headrace("predictors", *arguments, state=state))
