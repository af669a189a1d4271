"""The style sheet of the report pages, for light and dark screens and for print."""

from __future__ import annotations

# Blue and vermilion of Okabe and Ito's palette, lighter on dark: distinguishable with common colour blindness.
STYLE = """
:root{--bg:#fff;--panel:#f6f7f9;--ink:#1b1f24;--soft:#5b6470;--rule:#dfe3e8;--grid:#e8ebef;
--normal:#0072b2;--anomalous:#d55e00;--bad:#a63f00;--badbg:#fdeee3;--ok:#00527f;--okbg:#e5f1f8}
@media screen and (prefers-color-scheme:dark){:root{--bg:#14171b;--panel:#1d2127;--ink:#e6e9ed;--soft:#9aa4b0;
--rule:#323942;--grid:#282e36;--normal:#56a9e0;--anomalous:#f08a3c;--bad:#ffb27d;--badbg:#43260f;--ok:#9dd0f2;
--okbg:#12334a}}
*{box-sizing:border-box}
html{color-scheme:light dark;-webkit-text-size-adjust:100%;scroll-behavior:smooth}
body{margin:0 auto;max-width:1200px;padding:2.5rem clamp(1rem,4vw,2.5rem) 4rem;background:var(--bg);
color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1,h2,h3,h4{line-height:1.25;margin:0;font-weight:600;overflow-wrap:anywhere}
h1{font-size:1.9rem;letter-spacing:-.015em}
h2{font-size:1.45rem;letter-spacing:-.01em;margin-bottom:.75rem}
h3{font-size:1.1rem;margin:2.5rem 0 .35rem}
h4{font-size:.95rem;margin:1.25rem 0 .35rem}
section{margin-top:2.5rem}
section+section{border-top:1px solid var(--rule);padding-top:2.5rem}
a{color:var(--ok)}
nav ul{display:flex;flex-wrap:wrap;gap:.3rem 1.25rem;list-style:none;margin:.75rem 0 0;padding:0}
.how,figcaption,.empty{color:var(--soft);font-size:.9rem;margin:.25rem 0 .75rem;max-width:75ch}
.empty{padding:1.25rem;border:1px dashed var(--rule);border-radius:8px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:.45rem .9rem .45rem 0;border-bottom:1px solid var(--rule);vertical-align:top}
th{color:var(--soft);font-weight:500;vertical-align:bottom}
tfoot td{font-weight:600}
.num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
th.num{white-space:normal}
#summary td{white-space:nowrap}
td:last-child,th:last-child{padding-right:0}
.none{color:var(--soft);cursor:help}
.warn{display:block;color:var(--bad);font-size:.85em}
dl,dd{margin:0}
.facts{display:flex;flex-wrap:wrap;gap:.2rem 1.75rem;font-size:.9rem}
.facts div{display:flex;gap:.4rem;min-width:0}
.facts dt{color:var(--soft)}
.facts dd{overflow-wrap:anywhere;min-width:0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(7.4rem,1fr));gap:.75rem;margin:1.25rem 0}
.tile{background:var(--panel);border-radius:10px;padding:.8rem .95rem}
.tile dt,.tile dd{color:var(--soft);font-size:.82rem}
.tile .value{color:var(--ink);
font-size:1.55rem;line-height:1.3;font-weight:600;font-variant-numeric:tabular-nums}
.tile small{font-size:.9rem;font-weight:400;color:var(--soft)}
.promise{border-left:3px solid var(--normal);padding:.15rem 0 .15rem .9rem;margin:1.25rem 0;max-width:80ch}
.notes{color:var(--soft);padding-left:1.2rem;margin:.75rem 0;max-width:80ch}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,320px),1fr));gap:1rem 2rem}
.tables{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:0 2.5rem}
.tables>div{min-width:0}
figure{margin:0;max-width:560px;min-width:0}
figure h4{margin:.75rem 0 .4rem}
.chart{display:block;width:100%;height:auto;overflow:visible}
.chart text{fill:var(--soft);font-size:12px;font-variant-numeric:tabular-nums}
.chart .mark{fill:var(--ink)}
.grid{stroke:var(--grid)}
.axis{stroke:var(--soft)}
.bar{fill-opacity:.62}
.bar:hover{fill-opacity:1}
.bar.normal,.key.normal{fill:var(--normal)}
.bar.anomalous,.key.anomalous{fill:var(--anomalous)}
.marker{stroke:var(--ink);stroke-width:1.3;stroke-dasharray:5 3}
.chance{stroke:var(--soft);stroke-dasharray:2 4}
.line{fill:none;stroke:var(--normal);stroke-width:2.2;stroke-linejoin:round}
.line.c1{stroke:var(--anomalous)}.line.c2{stroke:var(--soft)}.line.c3{stroke:var(--ink)}
.key.c0,.point.c0{fill:var(--normal)}.key.c1,.point.c1{fill:var(--anomalous)}
.key.c2,.point.c2{fill:var(--soft)}.key.c3,.point.c3{fill:var(--ink)}
.area{fill:var(--normal);fill-opacity:.1}
.dot{fill:var(--anomalous);stroke:var(--bg);stroke-width:1.5}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr));gap:1rem}
.card{background:var(--panel);border-radius:10px;padding:.7rem;font-size:.85rem;
border-top:3px solid var(--normal)}
.card.anomalous{border-color:var(--anomalous)}
.card p{margin:.15rem 0}
.views{display:grid;grid-template-columns:repeat(3,1fr);gap:.35rem;margin-bottom:.5rem}
.views img{display:block;width:100%;height:auto;border-radius:5px}
.head{display:flex;gap:.6rem;align-items:baseline}
.head b{overflow-wrap:anywhere}
.head .num{margin-left:auto;font-weight:600}
.badge{border-radius:99px;padding:0 .55rem;font-size:.78rem;white-space:nowrap;
background:var(--okbg);color:var(--ok)}
.badge.bad{background:var(--badbg);color:var(--bad);font-weight:600}
.why{color:var(--bad);cursor:help}
.name{color:var(--soft);overflow-wrap:anywhere}
summary{cursor:pointer;margin-top:2.5rem}
summary h3{display:inline;margin:0}
summary span{color:var(--soft);font-size:.9rem}
@media print{body{max-width:none;padding:0;font-size:11px}figure,.card,.tile,tr{break-inside:avoid}
h2,h3,h4{break-after:avoid}nav{display:none}*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
.scroll{overflow:visible}.cards{grid-template-columns:repeat(3,1fr)}.charts{grid-template-columns:repeat(3,1fr)}}
"""
