"""How the page looks: light and dark by the reader's preference, always light on paper."""

from __future__ import annotations

__all__ = ["STYLE"]

_LIGHT = """
  --page: #ffffff; --card: #f6f7f9; --ink: #1b1f24; --soft: #59636e; --grid: #dfe3e8; --axis: #8b949e; --bad: #b42318;
  --s1: #1f6fb4; --s2: #d9730d; --s3: #2a9d62; --s4: #8e5bc0; --s5: #c9ced6;
"""
_DARK = """
  --page: #14171b; --card: #1d2127; --ink: #e6e9ed; --soft: #9aa4b0; --grid: #30363e; --axis: #6b7683; --bad: #ff8a7a;
  --s1: #58a6e8; --s2: #f0994b; --s3: #52c18a; --s4: #b78ae6; --s5: #434b55;
"""
STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
@media print {{ :root {{ color-scheme: light; {_LIGHT} }} figure, tr {{ break-inside: avoid }}
  h2, h3 {{ break-after: avoid }} }}
* {{ box-sizing: border-box }}
body {{ margin: 0 auto; padding: 1.5rem 1.25rem 4rem; max-width: 76rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; overflow-wrap: break-word }}
h1 {{ font-size: 1.6rem; margin: 0 }}
h2 {{ font-size: 1.2rem; margin: 2.4rem 0 .6rem; padding-top: .8rem; border-top: 1px solid var(--grid) }}
h3 {{ font-size: 1rem; margin: 1.2rem 0 .3rem }}
p {{ margin: .3rem 0 .6rem; max-width: 60rem }}
.soft, figcaption, th {{ color: var(--soft) }}
.bad {{ color: var(--bad); font-weight: 600 }}
.tiles {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: .6rem; margin: 1rem 0 }}
.tile {{ background: var(--card); border-radius: 8px; padding: .6rem .8rem }}
.tile b {{ display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums }}
.tile span {{ color: var(--soft); font-size: .85rem }}
.pair {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); gap: .5rem 1.5rem }}
figure {{ margin: .4rem 0 .8rem; display: flex; flex-direction: column; justify-content: space-between }}
figcaption {{ font-size: .9rem }}
figcaption b {{ color: var(--ink) }}
.key {{ white-space: nowrap; margin-right: .9em }}
.key i {{ display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .35em;
  vertical-align: -.05em;
  background: var(--tone); print-color-adjust: exact }}
svg {{ display: block; width: 100%; height: auto; margin-top: .2rem; overflow: visible; print-color-adjust: exact }}
svg text {{ font-size: 12px; fill: var(--ink); font-variant-numeric: tabular-nums }}
svg .tick, svg .label {{ fill: var(--soft) }}
.grid {{ stroke: var(--grid) }} .axis {{ stroke: var(--axis) }}
.line {{ fill: none; stroke: var(--tone); stroke-width: 1.8; stroke-linejoin: round }}
.area {{ fill: var(--tone); opacity: .18 }} .fill {{ fill: var(--tone) }}
.range {{ stroke: var(--tone); stroke-width: 3; stroke-linecap: round; opacity: .55 }}
.ring {{ fill: none; stroke: var(--tone); stroke-width: 2 }}
.s1 {{ --tone: var(--s1) }} .s2 {{ --tone: var(--s2) }} .s3 {{ --tone: var(--s3) }} .s4 {{ --tone: var(--s4) }}
.s5 {{ --tone: var(--s5) }} .limit {{ --tone: var(--bad) }} .limit.line {{ stroke-width: 1.2; stroke-dasharray: 5 4 }}
.wide {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-size: .9rem; margin: .4rem 0 }}
th, td {{ text-align: left; padding: .25rem .9rem .25rem 0; vertical-align: top; border-bottom: 1px solid var(--grid) }}
th {{ font-weight: 500 }} td {{ max-width: 42rem }}
td.n {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }} th.n {{ text-align: right }}
details {{ margin: .5rem 0 }} summary {{ cursor: pointer; color: var(--soft) }}
code {{ font: .92em ui-monospace, "SF Mono", Menlo, Consolas, monospace }}
"""
