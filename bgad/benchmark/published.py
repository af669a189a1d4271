"""Figures printed in the BGAD paper and in papers that compare with it.

A figure is kept as it was printed. Where a printed mean does not agree with its column, both stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from bgad.benchmark.paper_tables import IMAGE, PIXEL, PRO, Column

PAPER, DRA, AHL = "paper", "CVPR 2022", "CVPR 2024"
SOURCES = {
    PAPER: "the BGAD paper (CVPR 2023): EfficientNet-B6; its code reports the best epoch on the test set",
    DRA: "the DRA paper (Ding et al., CVPR 2022)",
    AHL: "the AHL paper (Zhu et al., CVPR 2024)",
}
# Printed name -> the method that is trained as the paper's; ours, such as bgad-plus, have no printed figures.
METHOD_OF = {"NFAD": "nfad", "BGAD w/o": "bgad-wo", "BGAD†": "bgad-full-push", "BGAD": "bgad"}


@dataclass(frozen=True)
class Published:
    """One printed entry; `category` is empty in a mean over a data set, `known_class` in a mean over the classes."""

    source: str
    column: str  # name of the method
    data: str
    protocol: str
    known: int
    category: str = ""
    known_class: str = ""
    values: dict[str, float] = field(default_factory=dict)


def _entry(text: str, metrics: tuple[str, ...]) -> dict[str, float]:
    """Parse `.954/.947` to values by metric; a dash stands for no value.

    >>> _entry(".954/-", (PIXEL, PRO))
    {'pixel_auroc': 0.954}
    """
    return {m: float(part) for m, part in zip(metrics, text.split("/"), strict=True) if part != "-"}


_MAIN = """
category    DRAEM      PaDiM      MSFD       PatchCore  CFA        NFAD       BGAD_w/o   BGAD      FCDD
carpet      .954/.947  .983/.946  .990/.958  .985/.959  .989/.943  .994/.983  .994/.982  .996/.989 .981/.952
grid        .997/.984  .963/.894  .986/.937  .974/.891  .977/.932  .993/.980  .994/.980  .995/.986 .949/.897
leather     .992/.981  .984/.966  .978/.924  .992/.974  .991/.958  .997/.994  .997/.994  .998/.994 .984/.973
tile        .994/.949  .958/.884  .952/.841  .960/.939  .960/.860  .969/.929  .968/.927  .994/.978 .977/.938
wood        .962/.935  .963/.891  .953/.925  .968/.857  .948/.882  .969/.957  .970/.957  .982/.970 .950/.901
bottle      .993/.955  .978/.936  .985/.940  .986/.956  .987/.944  .988/.965  .989/.964  .994/.971 .966/.939
cable       .961/.910  .979/.973  .972/.922  .986/.980  .987/.931  .975/.944  .980/.968  .986/.977 .963/.980
capsule     .869/.901  .980/.924  .979/.878  .990/.946  .989/.943  .989/.952  .992/.959  .992/.964 .970/.922
hazelnut    .997/.985  .980/.951  .982/.968  .988/.924  .986/.953  .984/.976  .985/.976  .995/.982 .970/.958
metal_nut   .992/.935  .979/.929  .972/.985  .986/.935  .987/.918  .971/.942  .976/.948  .996/.970 .966/.934
pill        .979/.959  .978/.957  .971/.929  .983/.947  .986/.965  .976/.978  .980/.980  .996/.988 .975/.960
screw       .992/.965  .974/.923  .983/.924  .984/.928  .985/.944  .988/.945  .992/.960  .993/.968 .963/.925
toothbrush  .970/.940  .980/.894  .986/.877  .987/.939  .989/.894  .983/.904  .986/.938  .995/.961 .967/.907
transistor  .970/.935  .983/.967  .886/.781  .964/.967  .985/.960  .923/.788  .940/.830  .983/.972 .942/.935
zipper      .984/.966  .978/.948  .981/.935  .986/.963  .988/.944  .986/.957  .987/.957  .993/.977 .968/.948
-           .969/.947  .976/.932  .970/.915  .981/.940  .982/.931  .979/.946  .982/.955  .992/.976 .966/.938
"""
_MAIN_IMAGE = """
category DRAEM PaDiM MSFD PatchCore CFA  NFAD BGAD_w/o BGAD FCDD DevNet DRA
-        .978  .975  .964 .988      .989 .968 .974     .993 .965 .948   .961
"""
_BTAD = """
category AE-MSE AE-SSIM VT-ADL NFAD      BGAD
01       .490/- .530/-  .990/- .972/.767 .982/.830
02       .920/- .960/-  .940/- .967/.578 .979/.648
03       .950/- .890/-  .770/- .996/.988 .998/.993
-        .780/- .790/-  .900/- .978/.778 .986/.824
"""
_ONE_CLASS = """
category   class               NFAD       DevNet FLOS    SAOE   MLEP   DRA    BGAD
carpet     color               .998/.993  .767/- .760/-  .467/- .689/- .886/- 1.000/.993
carpet     cut                 .998/.995  .819/- .688/-  .793/- .653/- .922/- .998/.996
carpet     hole                .997/.993  .814/- .733/-  .831/- .674/- .922/- .998/.995
carpet     metal_contamination .998/.993  .863/- .678/-  .883/- .764/- .933/- 1.000/.994
carpet     thread              1.000/.995 .972/- .946/-  .834/- .967/- .989/- 1.000/.996
carpet     -                   .998/.994  .847/- .761/-  .762/- .751/- .935/- .999/.995
metal_nut  bent                .977/.959  .904/- .827/-  .901/- .956/- .990/- 1.000/.972
metal_nut  color               .977/.963  .978/- .9788/- .879/- .945/- .967/- .999/.973
metal_nut  flip                .976/.977  .987/- .942/-  .795/- .805/- .913/- .995/.982
metal_nut  scratch             1.000/.965 .991/- .943/-  .845/- .805/- .911/- 1.000/.972
metal_nut  -                   .983/.966  .965/- .922/-  .855/- .878/- .945/- .998/.975
aitex      Broken_end          .835/.828  .658/- .585/-  .712/- .732/- .693/- .856/.824
aitex      Broken_pick         .960/.982  .585/- .548/-  .629/- .555/- .760/- .948/.983
aitex      Cut_selvage         .834/.830  .709/- .745/-  .770/- .682/- .777/- .865/.844
aitex      Fuzzyball           .815/.827  .734/- .550/-  .842/- .677/- .701/- .823/.825
aitex      Nep                 .834/.828  .810/- .746/-  .771/- .740/- .750/- .838/.825
aitex      Weft_crack          .827/.692  .599/- .636/-  .618/- .370/- .717/- .841/.685
aitex      -                   .851/.831  .683/- .635/-  .724/- .626/- .733/- .862/.831
elpv       mono                .860/-     .599/- .629/-  .569/- .756/- .731/- .884/-
elpv       poly                .870/-     .804/- .662/-  .796/- .734/- .800/- .880/-
elpv       -                   .865/-     .702/- .646/-  .683/- .745/- .766/- .882/-
"""
_ONE_CLASS_MORE = """
category   class             NFAD       BGAD
bottle     broken_large      1.000/.989 1.000/.991
bottle     broken_small      1.000/.987 1.000/.988
bottle     contamination     1.000/.994 1.000/.996
bottle     -                 1.000/.990 1.000/.992
capsule    crack             .934/.990  .984/.991
capsule    faulty_imprint    .955/.992  .990/.993
capsule    poke              .936/.989  .984/.991
capsule    scratch           .951/.989  .994/.990
capsule    squeeze           .928/.990  .988/.991
capsule    -                 .941/.990  .988/.991
grid       bent              .990/.994  .989/.995
grid       broken            .982/.993  .994/.994
grid       glue              .990/.993  1.000/.994
grid       metal_contamination .982/.993 .992/.994
grid       thread            .982/.995  .990/.996
grid       -                 .985/.994  .993/.995
hazelnut   crack             1.000/.996 1.000/.997
hazelnut   cut               1.000/.984 1.000/.985
hazelnut   hole              .997/.981  1.000/.985
hazelnut   print             .997/.981  .999/.984
hazelnut   -                 .998/.985  1.000/.988
screw      manipulated_front .887/.991  .957/.993
screw      scratch_head      .874/.988  .927/.990
screw      scratch_neck      .861/.987  .944/.989
screw      thread_side       .927/.992  .965/.994
screw      thread_top        .878/.988  .943/.989
screw      -                 .885/.989  .947/.991
tile       crack             .997/.979  1.000/.978
tile       glue_strip        .997/.967  1.000/.979
tile       gray_stroke       .999/.963  1.000/.969
tile       oil               .997/.959  1.000/.967
tile       rough             .998/.977  1.000/.987
tile       -                 .998/.969  1.000/.976
transistor bent_lead         .979/.925  .988/.921
transistor cut_lead          .982/.927  1.000/.935
transistor damaged_case      .985/.921  .989/.919
transistor misplaced         .991/.945  1.000/.994
transistor -                 .984/.929  .994/.942
wood       color             .995/.968  .994/.974
wood       combined          .994/.970  .994/.977
wood       hole              .994/.968  .999/.973
wood       liquid            .994/.967  .992/.970
wood       scratch           1.000/.986 .999/.988
wood       -                 .995/.972  .995/.976
"""
_FULL_PUSH = """
category   BGAD†
carpet     .998/.994
metal_nut  .997/.927
capsule    .868/.963
screw      .823/.980
transistor .933/.847
bottle     1.000/.983
hazelnut   1.000/.978
grid       .987/.988
tile       .999/.967
wood       .994/.969
"""
_SUBSETS = {
    "hard": {"NFAD": ".948/.960/.863", "BGAD": ".984/.986/.949"},
    "unseen": {"NFAD": ".948/.960/.863", "BGAD": ".971/.982/.930"},
}
_SETTINGS: dict[tuple[str, str], str] = {  # protocol and column: means over MVTec AD
    ("multi-class", "0 known"): ".968/.979/.946",
    ("multi-class", "5 known"): ".982/.985/.959",
    ("multi-class", "5 known, RPAG"): ".985/.988/.969",
    ("multi-class", "10 known"): ".983/.991/.969",
    ("multi-class", "10 known, RPAG"): ".988/.992/.973",
    ("multi-class", "10 known, RPAG, AW"): ".993/.992/.976",
    ("multi-class", "pseudo draem"): ".970/.979/.946",
    ("multi-class", "pseudo nsa"): ".977/.979/.946",
    ("multi-class", "pseudo rpag"): ".988/.992/.973",
    ("hard", "lambda 1"): ".983/.984/.945",
    ("hard", "lambda 5"): ".984/.985/.947",
    ("hard", "lambda 10"): ".985/.985/.950",
    ("multi-class", "beta 1%, tau 0.1"): ".9936/.9920/.9749",
    ("multi-class", "beta 1%, tau 0.2"): ".9935/.9920/.9752",
    ("multi-class", "beta 1%, tau 0.3"): ".9930/.9918/.9748",
    ("multi-class", "beta 5%, tau 0.1"): ".9916/.9922/.9759",
    ("multi-class", "beta 5%, tau 0.2"): ".9918/.9923/.9763",
    ("multi-class", "beta 5%, tau 0.3"): ".9922/.9921/.9762",
    ("multi-class", "beta 10%, tau 0.1"): ".9915/.9922/.9759",
    ("multi-class", "beta 10%, tau 0.2"): ".9920/.9922/.9764",
    ("multi-class", "beta 10%, tau 0.3"): ".9925/.9922/.9762",
}
_GENERAL = {  # AITEX, ELPV, BrainMRI, HeadCT: image AUROC
    (10, DRA): (0.892, 0.843, 0.971, 0.978),
    (10, AHL): (0.925, 0.850, 0.977, 0.993),
    (1, DRA): (0.693, 0.676, 0.747, 0.804),
    (1, AHL): (0.734, 0.723, 0.760, 0.825),
}


def _read(text: str, words: int, metrics: tuple[str, ...]) -> Iterator[tuple[list[str], str, dict[str, float]]]:
    """Yield row names, column and values of every entry; the first `words` columns are row names."""
    heads, *rows = (line.split() for line in text.strip().splitlines())
    for row in rows:
        names = ["" if name == "-" else name for name in row[:words]]
        for column, entry in zip(heads[words:], row[words:], strict=True):
            yield names, column.replace("_", " "), _entry(entry, metrics)


def _published() -> Iterator[Published]:
    """Yield the entries of all printed tables."""
    for text, metrics in ((_MAIN, (PIXEL, PRO)), (_MAIN_IMAGE, (IMAGE,))):
        for (category,), column, values in _read(text, 1, metrics):
            yield Published(PAPER, column, "mvtec", "multi-class", 10, category, "", values)
    yield Published(AHL, "AHL", "mvtec", "multi-class", 10, values={IMAGE: 0.970})
    for (category,), column, values in _read(_BTAD, 1, (PIXEL, PRO)):
        yield Published(PAPER, column, "btad", "multi-class", 10, category, "", values)
    for text in (_ONE_CLASS, _ONE_CLASS_MORE):
        for (category, known_class), column, values in _read(text, 2, (IMAGE, PIXEL)):
            data = category if category in ("aitex", "elpv") else "mvtec"
            yield Published(PAPER, column, data, "one-class", 10, category, known_class, values)
    yield Published(AHL, "AHL", "aitex", "one-class", 10, "aitex", values={IMAGE: 0.747})
    yield Published(AHL, "AHL", "elpv", "one-class", 10, "elpv", values={IMAGE: 0.788})
    for (category,), column, values in _read(_FULL_PUSH, 1, (IMAGE, PIXEL)):
        yield Published(PAPER, column, "mvtec", "one-class", 10, category, "", values)
    for protocol, columns in _SUBSETS.items():
        for column, text in columns.items():
            yield Published(PAPER, column, "mvtec", protocol, 10, values=_entry(text, (IMAGE, PIXEL, PRO)))
    for (known, source), figures in _GENERAL.items():
        for data, value in zip(("aitex", "elpv", "brainmri", "headct"), figures, strict=True):
            name = "DRA" if source == DRA else "AHL"
            yield Published(source, name, data, "multi-class", known, data, values={IMAGE: value})


PUBLISHED: tuple[Published, ...] = tuple(_published())


def printed(
    data: str, protocol: str, known: int, category: str = "", known_class: str = ""
) -> dict[tuple[str, str], dict[str, float]]:
    """Return (column, source) -> values by metric as printed for a row, or for a mean where names are empty."""
    protocol = "multi-class" if protocol == "general" else protocol
    wanted = (data, protocol, known, category.lower(), known_class.lower())
    values: dict[tuple[str, str], dict[str, float]] = {}
    for entry in PUBLISHED:
        if (entry.data, entry.protocol, entry.known, entry.category.lower(), entry.known_class.lower()) == wanted:
            values.setdefault((entry.column, entry.source), {}).update(entry.values)
    return values


def printed_classes(data: str, protocol: str, category: str) -> set[str]:
    """Return the known classes with a printed row, in lower case: a printed mean of the category is over these."""
    where = (data, protocol, category.lower())
    rows = [e for e in PUBLISHED if (e.data, e.protocol, e.category.lower()) == where]
    return {e.known_class.lower() for e in rows if e.known_class}


def printed_mean(data: str, protocol: str, known: int, column: Column) -> dict[str, float]:
    """Return the printed mean over a data set for a column of a table; empty where the paper prints none."""
    setting = _SETTINGS.get((protocol, column.title))
    if column.changes or setting:
        return _entry(setting, (IMAGE, PIXEL, PRO)) if setting and data == "mvtec" else {}
    name = next((printed_name for printed_name, method in METHOD_OF.items() if method == column.method), "")
    return printed(data, protocol, known).get((name, PAPER), {})
