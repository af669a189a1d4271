"""The tables of numbers as printed in the BGAD paper and in papers that compare with it; `published` reads them.

A figure is kept as it was printed. Where a printed mean does not agree with its column, both stay as they are. `-`
stands for no figure, or in a row name for a mean; `=` for the figure that the BGAD paper prints in the same place.
"""

from __future__ import annotations

from dataclasses import dataclass

from bgad.benchmark.paper_tables import IMAGE, PIXEL, PRO

PAPER, AHL = "paper", "CVPR 2024"
SOURCES = {
    PAPER: "the BGAD paper (CVPR 2023): EfficientNet-B6; its code reports the best epoch on the test set",
    AHL: "the AHL paper (Zhu et al., CVPR 2024): ResNet-18 in Table 1, means of three runs; SAOE, MLEP, FLOS as in DRA",
}


@dataclass(frozen=True)
class PrintedTable:
    """One printed table: a line of heads, then lines of row names and figures such as `.954/.947`."""

    source: str
    place: str  # number of the table in its source
    about: str
    protocol: str
    known: int | None  # None: the lines tell the number, or all anomalies of the training data are known
    metrics: tuple[str, ...]
    text: str
    data: str = ""  # data set of the categories; a category that is a data set needs none


@dataclass(frozen=True)
class PrintedSettings:
    """Means over MVTec AD that the BGAD paper prints for settings of BGAD: image AUROC, pixel AUROC and PRO."""

    place: str
    about: str
    protocol: str
    figures: dict[str, str]  # title of the column


PRINTED_TABLES: tuple[PrintedTable, ...] = (
    PrintedTable(
        PAPER,
        "Tables 1 and 2",
        "MVTec AD",
        "multi-class",
        10,
        (PIXEL, PRO),
        """
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
""",
        data="mvtec",
    ),
    PrintedTable(
        PAPER,
        "Tables 1 and 2",
        "MVTec AD, means",
        "multi-class",
        10,
        (IMAGE,),
        """
category DRAEM PaDiM MSFD PatchCore CFA  NFAD BGAD_w/o BGAD FCDD DevNet DRA
-        .978  .975  .964 .988      .989 .968 .974     .993 .965 .948   .961
""",
        data="mvtec",
    ),
    PrintedTable(
        PAPER,
        "Table 3",
        "BTAD",
        "multi-class",
        10,
        (PIXEL, PRO),
        """
category AE-MSE AE-SSIM VT-ADL NFAD      BGAD
01       .490/- .530/-  .990/- .972/.767 .982/.830
02       .920/- .960/-  .940/- .967/.578 .979/.648
03       .950/- .890/-  .770/- .996/.988 .998/.993
-        .780/- .790/-  .900/- .978/.778 .986/.824
""",
        data="btad",
    ),
    PrintedTable(
        PAPER,
        "Table 4",
        "MVTec AD",
        "one-class",
        10,
        (IMAGE, PIXEL),
        """
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
""",
        data="mvtec",
    ),
    PrintedTable(
        PAPER,
        "Table 5",
        "MVTec AD, hard subsets, means",
        "hard",
        10,
        (IMAGE, PIXEL, PRO),
        """
category NFAD           BGAD
-        .948/.960/.863 .984/.986/.949
""",
        data="mvtec",
    ),
    PrintedTable(
        PAPER,
        "Table 5",
        "MVTec AD, unseen subsets, means",
        "unseen",
        10,
        (IMAGE, PIXEL, PRO),
        """
category NFAD           BGAD
-        .948/.960/.863 .971/.982/.930
""",
        data="mvtec",
    ),
    PrintedTable(
        PAPER,
        "Tables 6 and 11",
        "MVTec AD, full push and pull, means over the known classes",
        "one-class",
        10,
        (IMAGE, PIXEL),
        """
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
""",
        data="mvtec",
    ),
    PrintedTable(
        PAPER,
        "Table 10",
        "AITEX and ELPV",
        "one-class",
        10,
        (IMAGE, PIXEL),
        """
category   class               NFAD       DevNet FLOS    SAOE   MLEP   DRA    BGAD
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
""",
    ),
    PrintedTable(
        PAPER,
        "Table 10",
        "MVTec AD, further categories",
        "one-class",
        10,
        (IMAGE, PIXEL),
        """
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
""",
        data="mvtec",
    ),
    PrintedTable(
        AHL,
        "Table 1",
        "general setting",
        "multi-class",
        None,
        (IMAGE,),
        """
known category  SAOE MLEP FLOS DevNet DRA  AHL_(DevNet) AHL_(DRA)
10    aitex     .874 .867 .841 .889   .892 .903         .925
10    elpv      .793 .794 .818 .843   .843 .849         .850
10    brainmri  .900 .959 .955 .951   .971 .959         .977
10    headct    .935 .972 .971 .997   .978 .999         .993
10    mvtec     .926 .907 .939 =      .966 .954         .970
1     aitex     .675 .564 .538 .609   .693 .704         .734
1     elpv      .635 .578 .457 .810   .676 .828         .723
1     brainmri  .531 .632 .693 .853   .747 .866         .760
1     headct    .597 .758 .698 .755   .804 .781         .825
1     mvtec     .834 .744 .792 .832   .889 .843         .901
""",
    ),
    # The MLEP figures with 10 known anomalies equal those that the BGAD paper prints for DRA, not for MLEP.
    PrintedTable(
        AHL,
        "Table 2",
        "hard setting, means over the known classes",
        "one-class",
        None,
        (IMAGE,),
        """
known category  SAOE MLEP FLOS DevNet DRA  AHL_(DevNet) AHL_(DRA)
10    carpet    =    .935 =    .853   .940 .860         .949
10    metal_nut =    .945 =    .970   .968 .972         .971
10    aitex     =    .733 =    .685   =    .709         .747
10    elpv      =    .766 =    .722   .771 .752         .788
1     aitex     .674 .466 .624 .646   .696 .660         .707
1     elpv      .614 .566 .691 .663   .722 .678         .740
""",
        data="mvtec",
    ),
    PrintedTable(
        AHL,
        "Table 4",
        "without any anomaly",
        "unsupervised",
        0,
        (IMAGE,),
        """
category KDAD PatchCore
aitex    .576 .783
elpv     .744 .916
brainmri .733 .754
headct   .793 .864
mvtec    .863 .992
""",
    ),
    PrintedTable(
        AHL,
        "Table 4",
        "fully supervised",
        "multi-class",
        None,
        (IMAGE,),
        """
category DRA
aitex    .919
elpv     .874
brainmri .979
headct   .998
mvtec    .984
""",
    ),
)

PRINTED_SETTINGS: tuple[PrintedSettings, ...] = (
    PrintedSettings(
        "Table 7",
        "weight of the semi-push-pull loss, hard subsets",
        "hard",
        {
            "lambda 1": ".983/.984/.945",
            "lambda 5": ".984/.985/.947",
            "lambda 10": ".985/.985/.950",
        },
    ),
    PrintedSettings(
        "Table 8",
        "known anomalies, RPAG and asymmetric weights (AW)",
        "multi-class",
        {
            "0 known": ".968/.979/.946",
            "5 known": ".982/.985/.959",
            "5 known, RPAG": ".985/.988/.969",
            "10 known": ".983/.991/.969",
            "10 known, RPAG": ".988/.992/.973",
            "10 known, RPAG, AW": ".993/.992/.976",
        },
    ),
    PrintedSettings(
        "Table 9",
        "pseudo anomalies",
        "multi-class",
        {
            "pseudo draem": ".970/.979/.946",
            "pseudo nsa": ".977/.979/.946",
            "pseudo rpag": ".988/.992/.973",
        },
    ),
    PrintedSettings(
        "Table 12",
        "boundary and margin",
        "multi-class",
        {
            "beta 1%, tau 0.1": ".9936/.9920/.9749",
            "beta 1%, tau 0.2": ".9935/.9920/.9752",
            "beta 1%, tau 0.3": ".9930/.9918/.9748",
            "beta 5%, tau 0.1": ".9916/.9922/.9759",
            "beta 5%, tau 0.2": ".9918/.9923/.9763",
            "beta 5%, tau 0.3": ".9922/.9921/.9762",
            "beta 10%, tau 0.1": ".9915/.9922/.9759",
            "beta 10%, tau 0.2": ".9920/.9922/.9764",
            "beta 10%, tau 0.3": ".9925/.9922/.9762",
        },
    ),
)
