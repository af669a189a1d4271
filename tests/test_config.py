from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from bgad.config import (
    METHODS,
    PRESETS,
    BackboneConfig,
    Config,
    from_dict,
    override,
    read_toml,
    to_dict,
    to_toml,
)
from bgad.errors import ConfigError


@pytest.mark.parametrize("preset", PRESETS)
def test_toml_round_trip(preset: str, tmp_path: Path) -> None:
    config = PRESETS[preset]
    path = tmp_path / "recipe.toml"
    path.write_text(to_toml(config))
    assert read_toml(path) == config
    assert from_dict(tomllib.loads(to_toml(config))) == config
    assert from_dict(to_dict(config)) == config


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_valid(preset: str) -> None:
    assert PRESETS[preset].check() is PRESETS[preset]


def test_paper_preset_is_the_paper() -> None:
    paper = PRESETS["paper"]
    assert paper.backbone.name == "tf_efficientnet_b6"
    assert (paper.train.lr, paper.train.epochs, paper.train.images_per_step) == (2e-4, 200, 32)
    assert (paper.loss.beta, paper.loss.tau, paper.loss.push_pull_weight) == (0.01, 0.1, 1.0)
    assert (paper.score.fusion, paper.score.level_prior_power, paper.score.top_share) == ("probability", 0.0, 0.0)
    assert paper.backbone.image_head_strides == ()  # the paper scores maps alone


def test_unknown_key_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown key loss\.taw in --set; did you mean loss\.tau\?"):
        override(Config(), ["loss.taw=0.1"])
    with pytest.raises(ConfigError, match="unknown key zzz"):
        from_dict({"zzz": 1})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loss.tau", "KEY=VALUE"),
        ("loss.tau=high", "must be of type float"),
        ("loss=3", "must be a table"),
        ("backbone.strides=4", "must be a list"),
        ("backbone.strides=[4, 8]", "train.positions_per_image must be one number for each"),
        ("backbone.size=100", "multiple of 16"),
        ("loss.method=bgat", "loss.method must be one of"),
        ("loss.beta=1.5", "between 0 and 1"),
        ("train.steps=true", "must be of type int"),
        ("backbone.image_head_strides=[32, 16]", "backbone.image_head_strides must be distinct and ascending"),
        ("loss.instance_share=1.5", "loss.instance_share must be 0 to 1"),
        ("score.top_share=2", "0 to 1"),
        ("score.level_prior_power=-1", "score.level_prior_power must be 0 to 4"),
        ("score.image_head_weight=-0.1", "score.image_head_weight must be 0 or more"),
        ("score.evidence_weight=-1.0", "score.evidence_weight must be 0 to 100"),
        ("score.evidence_weight=inf", "score.evidence_weight must be 0 to 100"),
        ("score.sharpness=0.0", "score.sharpness must be above 0"),
        ("score.direction_weight=-0.1", "score.direction_weight must be 0 or more"),
        ("seed=-1", "seed must be 0 or more"),
    ],
)
def test_bad_values_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        override(Config(), [text])


def test_override_takes_words_numbers_and_lists() -> None:
    config = override(
        Config(), ["loss.method=nfad", "loss.tau=1", "train.positions_per_image=[8, 8, 4]", 'backbone.name="lite1"']
    )
    assert config.loss.method == "nfad"
    assert config.loss.tau == 1.0
    assert config.train.positions_per_image == (8, 8, 4)
    assert config.backbone.name == "lite1"


@pytest.mark.parametrize(
    ("strides", "summary", "expected"),
    [
        ((4, 8, 16), (16, 32), (4, 8, 16, 32)),
        ((8, 16), (4, 16, 32), (8, 16, 4, 32)),
        ((4, 8), (), (4, 8)),
    ],
)
def test_the_strides_of_the_flows_come_first(
    strides: tuple[int, ...], summary: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert BackboneConfig(strides=strides, image_head_strides=summary).all_strides == expected


def test_broken_file(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    with pytest.raises(ConfigError, match="cannot read"):
        read_toml(path)
    path.write_text("loss = [")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_toml(path)


def test_methods_are_the_papers() -> None:
    assert list(METHODS) == ["nfad", "bgad-wo", "bgad-full-push", "bgad"]


def test_keys_that_depend_on_each_other_are_set_together() -> None:
    config = override(Config(), ["backbone.strides=[8, 16]", "train.positions_per_image=[32, 16]"])
    assert (config.backbone.strides, config.train.positions_per_image) == ((8, 16), (32, 16))
    with pytest.raises(ConfigError, match="seed"):
        override(Config(), [f"seed={2**32}"])


def test_steps_are_refused_where_epochs_take_their_place() -> None:
    paper = PRESETS["paper"]
    for key in ("train.steps", "train.push_steps"):
        with pytest.raises(ConfigError, match=rf"{key} counts only without epochs \(200\): set train.epochs=0 first"):
            override(paper, [f"{key}=100"])
        assert override(paper, ["train.epochs=0", f"{key}=100"]) == override(paper, [f"{key}=100", "train.epochs=0"])
        with pytest.raises(ConfigError, match=r"set train\.epochs=0 first"):
            override(Config(), [f"{key}=100", "train.epochs=3"])
    assert override(paper, ["train.epochs=3"]).train.epochs == 3
