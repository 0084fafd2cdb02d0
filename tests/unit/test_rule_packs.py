"""Tests of rule packs: sources, limits, missing values, and the mapping to a bundle's names."""

from __future__ import annotations

import itertools
import json
import math
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from bundles import ACTIONS, tiny_action_bundle, tiny_score_bundle
from typer.testing import CliRunner

from scorer.bundle import Action, Feature
from scorer.bundle.rules import BundleRules, CompiledRules, compile_action_rules
from scorer.cli import app
from scorer.errors import BundleError
from scorer.learn.guardrails.retries import DAY_MS, HOUR_MS, RetryLedger
from scorer.rule_packs.mapping import PackMapping, mapping_template, read_mapping
from scorer.rule_packs.pack import PREFIX, RulePack, names_in, pack_names, read_pack
from scorer.rule_packs.write import OwnRules, pack_rules_text

PACKS = [read_pack(name) for name in pack_names()]
OTHER = "other"
"""A value of every factor that no pack names."""
RULES = [(pack, rule) for pack in PACKS for rule in pack.rules]


def features_of(pack: RulePack) -> list[Feature]:
    """Return the features of a bundle with the pack's names."""
    return [Feature(name=name, type=one.type) for name, one in pack.features.items()]


def actions_of(pack: RulePack) -> list[Action]:
    """Return the actions of a bundle with the pack's names, with every combination of values."""
    levels = {name: [*factor.values, OTHER] for name, factor in pack.factors.items()}
    combinations = [dict(zip(levels, values, strict=True)) for values in itertools.product(*levels.values())]
    return [Action(id="|".join(factors.values()), factors=factors) for factors in combinations]


def written(pack: RulePack, **options) -> str:
    """Return the rule set of a bundle with the pack's names."""
    return pack_rules_text([pack], PackMapping(), features_of(pack), actions_of(pack), **options)


def compiled(pack: RulePack, **options) -> CompiledRules:
    found = compile_action_rules(BundleRules(written(pack, **options)), features_of(pack), actions_of(pack))
    assert isinstance(found, CompiledRules), found
    return found


COMPILED = {pack.name: compiled(pack) for pack in PACKS}


def excluded(pack: str, payment: dict[str, float | bool], **factors: str) -> list[str]:
    """Return the rules that exclude an action from a payment. Values that are left out are missing."""
    of = read_pack(pack)
    actions = actions_of(of)
    wanted = dict.fromkeys(of.factors, OTHER) | factors
    at = next(number for number, action in enumerate(actions) if action.factors == wanted)
    row = [float(payment.get(name, math.nan)) for name in of.features]
    assert set(payment) <= set(of.features)
    return [reason.rule for reason in COMPILED[pack].eligibility(np.array([row], np.float32)).reasons(0, at)]


@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: pack.name)
def test_a_pack_is_complete_and_every_rule_has_a_source(pack):
    assert [rule.id for rule in COMPILED[pack.name].rules] == [rule.id for rule in pack.rules]
    assert all(rule.source and rule.restricts for rule in COMPILED[pack.name].rules)
    texts = [rule.when for rule in pack.rules] + [value.expression for value in pack.values]
    read = {name for text in texts for name in names_in(text)}
    assert {name.removeprefix(PREFIX) for name in read if name.startswith(PREFIX)} == set(pack.features)
    assert {name for name in read if not name.startswith(PREFIX)} == {value.name for value in pack.values}
    levels = pack.levels_of(pack.rules)
    assert {name: list(factor.values) for name, factor in pack.factors.items()} == levels
    # What somebody may have to change is a named value at the top and no number of a condition.
    assert not any(re.search(r"\b\d", rule.when) for rule in pack.rules)
    limits = {value.name: value for value in pack.values if value.name.startswith("limits.")}
    assert all(re.fullmatch(r"[0-9.]+", value.expression) for value in limits.values())


def test_packs_can_be_combined():
    features = {feature.name: feature for pack in PACKS for feature in features_of(pack)}
    factors: dict[str, set[str]] = {}
    for pack in PACKS:
        for name, factor in pack.factors.items():
            factors.setdefault(name, {OTHER}).update(factor.values)
    combinations = itertools.product(*(sorted(values) for values in factors.values()))
    actions = [
        Action(id="|".join(values), factors=dict(zip(factors, values, strict=True)))
        for values in combinations
    ]
    text = pack_rules_text(PACKS, PackMapping(), list(features.values()), actions)
    found = compile_action_rules(BundleRules(text), list(features.values()), actions)
    assert isinstance(found, CompiledRules), found
    assert found.name == "psd2_sca_scheme_retries_three_ds_mandates"
    assert [rule.id for rule in found.rules] == [rule.id for _, rule in RULES]


def values_of(pack: RulePack, name: str) -> list[float]:
    """Return values of a feature on both sides of each limit of the pack, and the missing one."""
    if pack.features[name].type == "flag":
        return [0.0, 1.0, math.nan]
    limits = {float(value.expression) for value in pack.values if value.name.startswith("limits.")}
    around = {limit + step for limit in limits for step in (-0.01, 0.0, 0.01)}
    return [0.0, *sorted(around), math.nan]


@pytest.mark.parametrize(("pack", "rule"), RULES, ids=[rule.id for _, rule in RULES])
def test_a_missing_value_never_makes_an_action_eligible(pack, rule):
    """An action that is eligible without a feature is eligible with every value that the feature may have."""
    names = list(pack.features_of([rule]))
    values = [values_of(pack, name) for name in names]
    grid = np.array(list(itertools.product(*values)), np.float32)
    rows = np.full((len(grid), len(pack.features)), np.nan, np.float32)
    columns = [list(pack.features).index(name) for name in names]
    rows[:, columns] = grid
    removes = np.zeros(len(rows), dtype=bool)
    found = COMPILED[pack.name].eligibility(rows)
    position = [one.id for one in pack.rules].index(rule.id)
    removes[found.row[found.rule == position]] = True
    removes = removes.reshape([len(one) for one in values])
    assert 0 < removes.sum() < removes.size
    assert removes[(-1,) * len(names)], "a payment of which nothing is known"
    for axis in range(len(names)):
        missing = np.take(removes, -1, axis=axis)
        known = np.take(removes, range(removes.shape[axis] - 1), axis=axis).any(axis=axis)
        assert (missing | ~known).all(), f"{names[axis]} is missing, and a value would exclude the actions"
    assert found.errors == 0


IN_SCOPE = {
    "issuer_in_eea": True,
    "acquirer_in_eea": True,
    "merchant_initiated": False,
    "mail_or_telephone_order": False,
}


@pytest.mark.parametrize(
    ("payment", "owed"),
    [
        ({}, True),
        ({"issuer_in_eea": False}, False),
        ({"acquirer_in_eea": False}, False),
        ({"merchant_initiated": True}, False),
        ({"mail_or_telephone_order": True}, False),
        ({"issuer_in_eea": math.nan}, True),
        ({"issuer_in_eea": math.nan, "acquirer_in_eea": False}, False),
    ],
)
def test_payments_in_scope_owe_authentication(payment, owed):
    rules = excluded("psd2_sca", IN_SCOPE | payment, three_ds="none", exemption="none")
    assert rules == (["sca_authentication_owed"] if owed else [])
    assert excluded("psd2_sca", IN_SCOPE | payment, exemption="none") == []


@pytest.mark.parametrize(
    ("amount", "total", "count", "rules"),
    [
        (30.0, 0.0, 0.0, []),
        (30.01, 0.0, 0.0, ["sca_low_value_amount"]),
        (30.0, 100.0, 6.0, []),
        (30.0, 100.01, 5.0, []),
        (30.0, 100.01, 6.0, ["sca_low_value_counters"]),
        (30.0, math.nan, 5.0, []),
        (30.0, math.nan, 6.0, ["sca_low_value_counters"]),
        (math.nan, 0.0, 0.0, ["sca_low_value_amount"]),
    ],
)
def test_low_value_has_a_limit_and_two_counters_of_which_one_suffices(amount, total, count, rules):
    payment = {"amount_eur": amount, "low_value_sum_eur": total, "low_value_count": count}
    assert excluded("psd2_sca", payment, exemption="low_value") == rules


@pytest.mark.parametrize(
    ("rate", "limit"),
    [(0.0, 500), (1.0, 500), (1.01, 250), (6.0, 250), (6.01, 100), (13.0, 100), (13.01, None)],
)
def test_risk_analysis_is_allowed_up_to_the_amount_of_the_rate(rate, limit):
    def rules(amount, found=False):
        payment = {"amount_eur": amount, "fraud_rate_bp": rate, "risk_found": found}
        return excluded("psd2_sca", payment, exemption="tra")

    assert rules(1_000.0) == ["sca_tra_amount"]
    assert rules(0.0) == ([] if limit else ["sca_tra_amount"])
    if limit:
        assert rules(limit) == []
        assert rules(limit + 0.01) == ["sca_tra_amount"]
        assert rules(limit, found=True) == ["sca_tra_risk"]


@pytest.mark.parametrize(
    ("feature", "exemption"),
    [
        ("trusted_beneficiary", "trusted_beneficiary"),
        ("recurring_subsequent", "recurring"),
        ("secure_corporate", "secure_corporate"),
        ("merchant_initiated", "merchant_initiated"),
    ],
)
def test_other_exemptions_need_their_condition(feature, exemption):
    assert excluded("psd2_sca", {feature: True}, exemption=exemption) == []
    assert excluded("psd2_sca", {feature: False}, exemption=exemption) == [f"sca_{exemption}"]
    assert excluded("psd2_sca", {}, exemption=exemption) == [f"sca_{exemption}"]


INDIAN = {
    "issued_in_india": True,
    "acquired_in_india": True,
    "e_mandate_subsequent": False,
    "amount_inr": 10.0,
}


@pytest.mark.parametrize(
    ("payment", "mandated"),
    [
        ({}, True),
        ({"issued_in_india": False}, False),
        ({"acquired_in_india": False}, False),
        ({"e_mandate_subsequent": True, "amount_inr": 15_000.0}, False),
        ({"e_mandate_subsequent": True, "amount_inr": 15_001.0}, True),
    ],
)
def test_domestic_payments_of_india_are_challenged(payment, mandated):
    elsewhere = {"acquired_in_japan": False}
    for three_ds in ("none", "frictionless"):
        rules = excluded("three_ds_mandates", INDIAN | elsewhere | payment, three_ds=three_ds)
        assert rules == (["mandate_india"] if mandated else [])
    assert excluded("three_ds_mandates", INDIAN | elsewhere | payment) == []


def test_credit_cards_in_japan_use_three_ds():
    japan = {"issued_in_india": False, "acquired_in_japan": True, "credit_card": True, "japan_exempt": False}
    assert excluded("three_ds_mandates", japan, three_ds="none") == ["mandate_japan"]
    assert excluded("three_ds_mandates", japan, three_ds="frictionless") == []
    for exempt in ({"acquired_in_japan": False}, {"credit_card": False}, {"japan_exempt": True}):
        assert excluded("three_ds_mandates", japan | exempt, three_ds="none") == []


@pytest.mark.parametrize("scheme", ["visa", "mastercard"])
def test_retry_limits_agree_with_the_ledger(scheme):
    ledger = RetryLedger()
    other = "mastercard" if scheme == "visa" else "visa"
    for attempt in range(45):
        now = attempt * 13 * HOUR_MS
        declines = [at * 13 * HOUR_MS for at in range(attempt)]
        in_day = sum(at > now - DAY_MS for at in declines)
        in_month = sum(at > now - 30 * DAY_MS for at in declines)
        payment = {
            scheme: True,
            other: False,
            "visa_category_1": False,
            "visa_reattempts_30d": max(in_month - 1, 0) if in_month == attempt else in_month,
            "mastercard_do_not_try_again": False,
            "mastercard_declines_24h": in_day,
            "mastercard_declines_30d": in_month,
        }
        answer = ledger.may_retry("card", scheme, now, amount_cents=100)
        rules = excluded("scheme_retries", payment, retry="again")
        assert (rules == []) is answer.allowed, (attempt, rules, answer)
        assert excluded("scheme_retries", payment) == []
        ledger.declined("card", scheme, now, amount_cents=100, codes=["51"])
    assert rules, "the limits were reached"


def test_retries_are_excluded_by_codes_and_by_the_day():
    calm = {"visa": False, "mastercard": True, "mastercard_do_not_try_again": False}
    calm |= {"mastercard_declines_24h": 9, "mastercard_declines_30d": 34}
    assert excluded("scheme_retries", calm, retry="again") == []
    for changed, rule in (
        ({"mastercard_do_not_try_again": True}, "retry_mastercard_advice_code"),
        ({"mastercard_declines_24h": 10}, "retry_mastercard_24_hours"),
        ({"mastercard_declines_30d": 35}, "retry_mastercard_30_days"),
    ):
        assert excluded("scheme_retries", calm | changed, retry="again") == [rule]
    visa = {"visa": True, "mastercard": False, "visa_reattempts_30d": 0, "visa_category_1": True}
    assert excluded("scheme_retries", visa, retry="again") == ["retry_visa_category_1"]


# Mapping, merging and writing.

OPTIONS = (
    *("--map", "amount_eur=amount", "--map", "issuer_in_eea=hour < 12.0", "--map", "acquirer_in_eea=true"),
    *("--map", "merchant_initiated=false", "--map", "mail_or_telephone_order=false"),
    *("--map", "low_value_sum_eur=distance * 10.0", "--map", "low_value_count=count_24h"),
    *("--map", "fraud_rate_bp=6.0", "--map", "risk_found=distance > 30.0"),
    *("--map", "three_ds=3ds", "--map", "three_ds.none=off", "--map", "exemption.low_value=low"),
    *("--without", "sca_trusted_beneficiary", "--without", "sca_recurring"),
    *("--without", "sca_secure_corporate", "--without", "sca_merchant_initiated"),
)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("packs")
    tiny_action_bundle(place / "action")
    tiny_score_bundle(place / "score")
    return place


def rules(*arguments):
    return CliRunner().invoke(app, ["rules", *map(str, arguments)])


def refused(*arguments) -> str:
    """Return the message of a command that is refused."""
    result = rules(*arguments)
    assert result.exit_code != 0
    assert isinstance(result.exception, BundleError), result.output
    return str(result.exception)


def test_a_pack_becomes_a_rule_set_in_the_names_of_a_bundle(bundles, tmp_path):
    file = tmp_path / "rules.toml"
    done = rules("packs", "write", "psd2_sca", "-b", bundles / "action", "-o", file, *OPTIONS)
    assert done.exit_code == 0, done.output
    assert "wrote" in done.output
    checked = rules("check", file, "-b", bundles / "action", "--json")
    assert checked.exit_code == 0, checked.output
    ids = [rule["id"] for rule in json.loads(checked.output)["rules"]]
    assert ids == [
        *("sca_authentication_owed", "sca_low_value_amount", "sca_low_value_counters"),
        *("sca_tra_amount", "sca_tra_risk"),
    ]
    content = tomllib.loads(file.read_text())
    assert content["name"] == "psd2_sca"
    values = {value["name"]: value["is"] for value in content["values"]}
    assert values["payment.issuer_in_eea"] == "hour < 12.0"
    assert values["limits.low_value_eur"] == "30.0"
    assert "payment.trusted_beneficiary" not in values
    owed = content["rules"][0]
    assert owed["remove"] == {"3ds": ["off"], "exemption": ["none"]}
    assert "article 97(1)(b)" in owed["source"]
    # The text is for people: limits are explained, and lines are short.
    assert "# RTS, article 16(a)" in file.read_text()
    cases = tmp_path / "cases.toml"
    cases.write_text(
        '[[cases]]\nname = "a morning"\n'
        "features = { amount = 251.0, hour = 9.0, count_24h = 0.0, distance = 1.0 }\n"
        'expect = { fired = ["sca_authentication_owed", "sca_low_value_amount", "sca_tra_amount"], '
        'eligible = ["3ds=frictionless|exemption=none"] }\n'
        '[[cases]]\nname = "no amount"\nfeatures = { hour = 13.0, count_24h = 0.0, distance = 1.0 }\n'
        f"expect = {{ eligible = {[one for one in ACTIONS if 'none' in one]} }}\n"
    )
    tested = rules("test", file, cases, "-b", bundles / "action")
    assert tested.exit_code == 0, tested.output


def test_own_rules_stay_as_they_are_and_the_pack_follows(bundles, tmp_path):
    own, file = tmp_path / "own.toml", tmp_path / "rules.toml"
    own.write_text(
        '# Our agreements.\nname = "ours"\n[[rules]]\nid = "night"\nwhen = "hour < early"\n'
        'remove = { exemption = ["tra"] }\nsource = "agreement"\n[[values]]\nname = "early"\nis = "1.0"\n'
    )
    done = rules("packs", "write", "psd2_sca", "-b", bundles / "action", "-o", file, "--with", own, *OPTIONS)
    assert done.exit_code == 0, done.output
    assert file.read_text().startswith(own.read_text())
    content = tomllib.loads(file.read_text())
    assert (content["name"], content["rules"][0]["id"], len(content["rules"])) == ("ours", "night", 6)
    assert rules("check", file, "-b", bundles / "action").exit_code == 0
    # The result cannot be merged again.
    message = refused(
        "packs", "write", "psd2_sca", "-b", bundles / "action", "-o", tmp_path / "n", "--with", file, *OPTIONS
    )
    assert 'rule "sca_tra_amount" is in' in message
    assert "--without sca_tra_amount" in message
    assert 'value "payment.amount_eur" is in' in message
    assert not (tmp_path / "n").exists()


def test_what_a_bundle_lacks_is_named(bundles, tmp_path):
    message = refused("packs", "write", "psd2_sca", "-b", bundles / "action", "-o", tmp_path / "r.toml")
    lines = message.splitlines()
    for name in read_pack("psd2_sca").features:
        assert any(line.startswith(f'feature "{name}": the bundle has none') for line in lines), name
    assert any(
        'factor "three_ds": the bundle\'s actions have no factor "three_ds"; map it to one of 3ds' in x
        for x in lines
    )
    assert any('value "low_value": no action has exemption = "low_value"' in line for line in lines)
    assert any("leave out sca_trusted_beneficiary" in line for line in lines)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (("--map", "amont_eur=amount"), 'mapping of "amont_eur": the packs have no feature or factor'),
        (
            ("--map", "exemption.lowvalue=low"),
            'mapping of "exemption.lowvalue": the packs have no such value',
        ),
        (("--map", "amount_eur"), "is not of the form NAME=VALUE"),
        (("--map", "risk_found=amount"), 'feature "risk_found", mapped to "amount": that is a number'),
        (("--map", "amount_eur=total"), 'feature "amount_eur", mapped to "total": the bundle has none'),
        (("--map", "amount_eur=amont * 2.0"), "unknown name"),
        (("--without", "sca_tra"), 'rule "sca_tra": the packs have none of this name'),
        (("--with", "x.toml", "--name", "y"), "--name is for a new rule set"),
    ],
)
def test_a_wrong_mapping_is_refused_by_name(bundles, tmp_path, more, named):
    message = refused(
        "packs", "write", "psd2_sca", "-b", bundles / "action", "-o", tmp_path / "r.toml", *OPTIONS, *more
    )
    assert named in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('name = "o"\nhit = "first"\n', 'the hit policy is "first"'),
        ('name = "o"\nrules = []\n', "write its values and rules as"),
        ("name =", "is not valid TOML"),
        (
            'name = "o"\n[[values]]\nname = "limits.low_value_eur"\nis = "20.0"\n',
            'value "limits.low_value_eur" is in',
        ),
        ('name = "o"\n[[tables]]\nid = "sca_tra_risk"\n', 'rule "sca_tra_risk" is in "own" and in the pack'),
    ],
)
def test_own_rules_that_cannot_be_merged_are_refused(text, named):
    with pytest.raises(BundleError, match=re.escape(named)):
        written(read_pack("psd2_sca"), own=OwnRules("own", text))


def test_a_value_can_stand_for_several_of_the_bundle():
    pack = read_pack("scheme_retries")
    actions = [Action(id=name, factors={"again": name}) for name in ("no", "soft", "hard")]
    mapping = read_mapping(None, ["retry=again", "retry.again=soft,hard"])
    text = pack_rules_text([pack], mapping, features_of(pack), actions)
    found = compile_action_rules(BundleRules(text), features_of(pack), actions)
    assert isinstance(found, CompiledRules)
    missing = np.full((1, len(pack.features)), np.nan, np.float32)
    assert found.eligibility(missing).mask.tolist() == [[True, False, False]]


def test_the_template_of_a_mapping_maps_every_name_to_itself(tmp_path):
    for pack in PACKS:
        file = tmp_path / f"{pack.name}.toml"
        file.write_text(mapping_template([pack]))
        mapping = read_mapping(file, [])
        assert mapping.features == {name: name for name in pack.features}
        assert written(pack) == pack_rules_text([pack], mapping, features_of(pack), actions_of(pack))
    with pytest.raises(BundleError, match="feature: Extra inputs"):
        file.write_text("[feature]\n")
        read_mapping(file, [])
    with pytest.raises(BundleError, match="cannot be read"):
        read_mapping(tmp_path / "none", [])


def test_packs_are_listed_and_shown():
    listed = rules("packs")
    assert listed.exit_code == 0, listed.output
    assert all(pack.name in listed.output for pack in PACKS)
    (first, *_) = json.loads(rules("packs", "--json").output)
    assert first["rules"][0]["source"]
    for pack in PACKS:
        shown = rules("packs", "show", pack.name).output
        assert all(rule.id in shown and rule.source.split(",")[0] in shown for rule in pack.rules)
        assert all(name in shown for name in (*pack.features, *pack.factors))
        assert "[levels." in rules("packs", "show", pack.name, "--mapping").output
    assert "the packs are psd2_sca, scheme_retries, three_ds_mandates" in refused("packs", "show", "psd3")


def test_files_are_not_replaced_and_scores_have_no_packs(bundles, tmp_path):
    file = tmp_path / "rules.toml"
    file.write_text("ours")
    arguments = ("packs", "write", "psd2_sca", "-b", bundles / "action", "-o", file, *OPTIONS)
    assert "exists; choose another file" in refused(*arguments)
    assert file.read_text() == "ours"
    assert rules(*arguments, "--force").exit_code == 0
    assert file.read_text() != "ours"
    message = refused(
        "packs", "write", "psd2_sca", "-b", bundles / "score", "-o", tmp_path / "s.toml", *OPTIONS
    )
    assert "is a bundle of scores" in message
