from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from bgad.config import (
    METHODS,
    OBJECTIVES,
    PRESETS,
    PRINTED,
    BackboneConfig,
    Config,
    from_dict,
    override,
    preset_for,
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
    assert from_dict(read_toml(path)) == config
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
    assert paper.backbone.crop
    assert paper.pseudo.method == "rpag"


def test_the_fast_paper_preset_differs_in_the_schedule_alone() -> None:
    paper, fast = to_dict(PRESETS["paper"]), to_dict(PRESETS["paper-fast"])
    schedule = fast.pop("train")
    assert {key: value for key, value in paper.items() if key != "train"} == fast
    assert schedule == to_dict(Config())["train"]


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
        ("backbone.strides=[]", r"backbone\.strides must be distinct and ascending"),
        ("backbone.blocks=[5, 2]", r"backbone\.blocks must be distinct and ascending, from 0"),
        ("backbone.blocks=[-1]", r"backbone\.blocks must be distinct and ascending, from 0"),
        ("backbone.blocks=[2, 5]", "train.positions_per_image must be one number for each of the 2 blocks"),
        ("backbone.image_head_blocks=[8, 8]", r"backbone\.image_head_blocks must be distinct and ascending, from 0"),
        ("method=bgad", "--set cannot change the method, which has a recipe of its own: use --method NAME"),
        ("method.name=bgad", "method in --set must be of type str"),
        ("loss.method=bgad", r"unknown key loss\.method in --set"),
        ("loss.beta=1.5", "between 0 and 1"),
        ("train.steps=true", "must be of type int"),
        ("backbone.image_head_strides=[32, 16]", "backbone.image_head_strides must be distinct and ascending"),
        ("loss.instance_share=1.5", "loss.instance_share must be 0 to 1"),
        ("score.top_share=2", "0 to 1"),
        ("score.level_prior_power=-1", "score.level_prior_power must be 0 to 4"),
        ("score.image_head_weight=-0.1", "score.image_head_weight must be 0 or more"),
        ("score.evidence_weight=-1.0", "score.evidence_weight must be 0 to 100"),
        ("score.evidence_weight=inf", "score.evidence_weight must be 0 to 100"),
        ("score.direction_weight=-0.1", "score.direction_weight must be 0 or more"),
        ("seed=-1", "seed must be 0 or more"),
    ],
)
def test_bad_values_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        override(Config(), [text])


def test_override_takes_words_numbers_and_lists() -> None:
    config = override(
        Config(), ["pseudo.method=nsa", "loss.tau=1", "train.positions_per_image=[8, 8, 4]", 'backbone.name="lite1"']
    )
    assert config.pseudo.method == "nsa"
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
    assert BackboneConfig(strides=strides, image_head_strides=summary).all_levels == expected


def test_the_blocks_of_a_vision_transformer_take_the_place_of_its_strides() -> None:
    backbone = BackboneConfig(strides=(), image_head_strides=(), blocks=(2, 5, 8), image_head_blocks=(8, 11), size=252)
    backbone.check()
    assert backbone.levels == (2, 5, 8)
    assert backbone.image_head_levels == (8, 11)
    assert backbone.all_levels == (2, 5, 8, 11)


def test_broken_file(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    with pytest.raises(ConfigError, match="cannot read"):
        read_toml(path)
    path.write_text("loss = [")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_toml(path)


def test_methods_are_ours_and_the_papers() -> None:
    assert list(METHODS) == ["bgad-plus", "nfad-plus", "bgad", "bgad-full-push", "bgad-wo", "nfad", "bgad-distance"]
    assert [name for name, method in METHODS.items() if method.is_printed] == list(METHODS)[2:6]
    assert [name for name, method in METHODS.items() if method.level != "flow"] == ["bgad-distance"]
    assert {name for name, method in METHODS.items() if method.uses_anomalies} == {
        *("bgad-plus", "bgad", "bgad-full-push", "bgad-distance")
    }
    assert {method.objective for method in METHODS.values()} == set(OBJECTIVES)
    assert Config().method == "bgad-plus"
    with pytest.raises(ConfigError, match="method must be one of bgad-plus, nfad-plus, bgad"):
        from_dict({"method": "bgat"})


def test_a_method_without_a_preset_has_its_own_default() -> None:
    for name, method in METHODS.items():
        config = preset_for(name, None)
        assert config.method == name
        assert config.check() == replace(PRESETS[method.presets[0]], method=name)
    assert [METHODS[name].presets[0] for name in ("bgad", "bgad-plus", "bgad-distance")] == [
        *("paper-fast", "default", "distance")
    ]
    assert preset_for(None, None) == Config()
    assert preset_for("nfad", "paper").train.epochs == 200
    with pytest.raises(ConfigError, match="bgad cannot be trained by the preset default: use paper-fast or paper"):
        preset_for("bgad", "default")
    with pytest.raises(ConfigError, match="nfad-plus cannot be trained by the preset paper: use default"):
        preset_for("nfad-plus", "paper")


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        (
            "bgad-distance",
            "flow.blocks=4",
            "flow has no effect in bgad-distance, whose levels are",
        ),
        ("bgad-plus", "distance.bank_size=9", "distance has no effect in bgad-plus, whose levels are of the kind flow"),
        (
            "bgad-distance",
            "train.steps=5",
            "train.steps and train.epochs must be 0 in bgad-distance: phase 1",
        ),
        ("bgad-distance", "train.epochs=5", "train.steps and train.epochs must be 0 in bgad-distance"),
        ("bgad-distance", "train.steps=-1", "train.steps must be 0 or more"),
        ("bgad-plus", "train.steps=0", "train.steps must be at least 1"),
        ("bgad-distance", "distance.dimension=-1", "distance.dimension must be 0 or more"),
        ("bgad-distance", "distance.bank_size=0", "distance.bank_size must be 1 to 65536"),
        ("bgad-distance", "distance.scale=0.0", "distance.scale must be above 0, up to 1000"),
        ("bgad-distance", "distance.banksize=9", "unknown key distance.banksize in --set; did you mean"),
    ],
)
def test_keys_fit_the_levels_of_the_method(method: str, change: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        override(preset_for(method, None), [change])


NOT_PRINTED = {
    "strides": [4, 8, 32],
    "image_head_strides": [16, 32],
    "image_head_blocks": [8, 11],
    "min_stride": 8,
    "crop": False,
    "blocks": 6,
    "standardise": True,
    "likelihood": "logsigmoid",
    "boundary": "batch",
    "exclude_far": False,
    "fusion": "p-value",
}


@pytest.mark.parametrize(("part", "key"), [(part, key) for part, keys in PRINTED.items() for key in keys])
def test_what_is_printed_is_fixed(part: str, key: str) -> None:
    """Another value is refused under a method of the paper, and taken under ours."""
    other = NOT_PRINTED.get(key, 1.0)
    with pytest.raises(ConfigError, match=rf"{part}\.{key} is .* in the paper's bgad-wo, not .*bgad-plus or nfad-plus"):
        from_dict({part: {key: other}}, preset_for("bgad-wo", None))
    from_dict({part: {key: other}})
    assert getattr(getattr(preset_for("bgad-wo", None), part), key) == PRINTED[part][key]


def test_what_the_paper_varies_may_be_changed() -> None:
    changes = ["loss.beta=0.05", "loss.tau=0.3", "loss.push_pull_weight=5", "loss.asymmetric_weights=false"]
    changes += ["pseudo.method=nsa", "backbone.name=lite0", "backbone.size=512", "train.steps=5"]
    config = override(preset_for("bgad", None), changes)
    assert (config.method, config.loss.tau, config.backbone.size) == ("bgad", 0.3, 512)


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
