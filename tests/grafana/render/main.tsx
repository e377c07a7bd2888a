// A dashboard drawn with @grafana/ui, from its JSON and answers of Prometheus. Grafana's server has plugins around these
// components that are not published; what stands in for them is below, as thin as it can be. State timelines and heat
// maps have no published component: bands.tsx draws them, with Grafana's colours and words.
import React from 'react';
import { createRoot } from 'react-dom/client';
import '@fontsource/inter/400.css';
import '@fontsource/inter/500.css';
import 'uplot/dist/uPlot.min.css';
import { createTheme, dateTime, EventBusSrv, getDisplayValueAlignmentFactors, getFieldDisplayValues, renderMarkdown, ThemeContext } from '@grafana/data';
import { BarGauge, BigValue, Icon, PanelChrome, PanelContextProvider, TimeSeries, VizRepeater } from '@grafana/ui';
import { TableNG } from 'grafana-table';
import { Answer, framesOf } from './frames';
import { Bands, Heat } from './bands';

declare const window: any;
const { board, answers, from, to, variables } = window.PICTURE as {
  board: any; answers: Record<string, Answer[]>; from: number; to: number; variables: Array<[string, string]>;
};
const theme = createTheme({ colors: { mode: 'dark' } });
const CELL = 30, GAP = 8, WIDTH = window.innerWidth - 32;
const range = { from: dateTime(from * 1000), to: dateTime(to * 1000), raw: { from: 'now-1h', to: 'now' } };

// Annotations: a band from its first to its last moment with dashed edges, as Grafana draws them.
const notes: Array<{ from: number; to: number; colour: string }> = window.PICTURE.notes;
function mark(u: any, note: { from: number; to: number; colour: string }) {
  const pen = u.ctx as CanvasRenderingContext2D, colour = theme.visualization.getColorByName(note.colour);
  const [a, b] = [note.from, note.to].map((t) => u.valToPos(t * 1000, 'x', true)), { top, height } = u.bbox;
  pen.save();
  pen.fillStyle = pen.strokeStyle = colour;
  pen.lineWidth = 2 * devicePixelRatio;
  pen.setLineDash([5, 5]);
  for (const x of b - a > 4 ? [a, b] : [a]) { pen.beginPath(); pen.moveTo(x, top); pen.lineTo(x, top + height); pen.stroke(); }
  pen.globalAlpha = 0.1;
  pen.fillRect(a, top, b - a, height);
  pen.globalAlpha = 1;
  pen.fillRect(a - 3, top + height, Math.max(6, b - a), 4);
  pen.restore();
}

function Figure({ panel, frames, width, height }: any) {
  const o = panel.options, bar = panel.type === 'bargauge';
  const getValues = () => getFieldDisplayValues({
    fieldConfig: panel.fieldConfig, reduceOptions: o.reduceOptions, replaceVariables: (s: string) => s, theme,
    data: frames, sparkline: o.graphMode === 'area', timeZone: 'utc',
  });
  const values = getValues();
  const one = ({ value, width, height, count, orientation, alignmentFactors }: any) => bar ? (
    <BarGauge theme={theme} value={value.display} width={width} height={height} orientation={orientation} field={value.field}
      display={value.view?.getFieldDisplayProcessor(value.colIndex)} displayMode={o.displayMode} showUnfilled={o.showUnfilled}
      valueDisplayMode={o.valueMode} namePlacement={o.namePlacement} alignmentFactors={alignmentFactors} text={o.text} />
  ) : (
    <BigValue value={value.display} count={count} width={width} height={height} theme={theme} sparkline={value.sparkline}
      colorMode={o.colorMode} graphMode={o.graphMode} justifyMode={o.justifyMode} wideLayout={o.wideLayout}
      textMode={o.textMode === 'auto' && (count ?? 1) === 1 ? ('value' as any) : o.textMode}
      alignmentFactors={alignmentFactors} text={o.text} />
  );
  return <VizRepeater getValues={() => values} getAlignmentFactors={getDisplayValueAlignmentFactors as any} renderValue={one}
    width={width} height={height} source={frames} renderCounter={1} orientation={bar ? o.orientation : ('auto' as any)}
    autoGrid itemSpacing={bar ? 6 : 3} minVizWidth={o.minVizWidth} minVizHeight={o.minVizHeight} maxVizHeight={o.maxVizHeight} />;
}

function Content({ panel, frames, width, height }: any) {
  if (panel.type === 'text') {
    return <div className="markdown-html" dangerouslySetInnerHTML={{ __html: renderMarkdown(panel.options.content) }} />;
  }
  if (!frames.length || !frames.some((f: any) => f.length)) {
    return <div className="nothing">No data</div>;
  }
  switch (panel.type) {
    case 'stat': case 'bargauge':
      return <Figure {...{ panel, frames, width, height }} />;
    case 'timeseries':
      return (
        <PanelContextProvider value={{ eventBus: new EventBusSrv(), eventsScope: '', sync: () => 0 } as any}>
          <TimeSeries frames={frames} timeRange={range as any} timeZone="utc" width={width} height={height}
            legend={panel.options.legend} options={panel.options}>
            {(config: any) => { config.addHook('draw', (u: any) => notes.forEach((note) => mark(u, note))); return null; }}
          </TimeSeries>
        </PanelContextProvider>
      );
    case 'table':
      return <TableNG data={frames[0]} width={width} height={height} noHeader={false} cellHeight={panel.options.cellHeight}
        getActions={() => []} fieldConfig={panel.fieldConfig} transparent={false} structureRev={1} timeRange={range as any}
        disableSanitizeHtml={false} />;
    case 'state-timeline':
      return <Bands {...{ panel, frames, width, height, from, to, theme }} />;
    case 'heatmap':
      return <Heat {...{ panel, frames, width, height, from, to, theme }} />;
  }
  return <div className="nothing">{panel.type}</div>;
}

// A panel that cannot be drawn says so in its place; the rest is drawn all the same.
class Guard extends React.Component<any, any> {
  state = { error: undefined as any };
  static getDerivedStateFromError(error: any) { return { error }; }
  render() {
    return this.state.error ? <pre style={{ color: 'red' }}>{String(this.state.error.stack).slice(0, 600)}</pre> : this.props.children;
  }
}

function Panel({ panel, frames }: any) {
  const { x, y, w, h } = panel.gridPos;
  const column = (WIDTH + GAP) / 24;
  const width = Math.floor(w * column - GAP), height = h * (CELL + GAP) - GAP;
  const style = { position: 'absolute' as const, left: Math.floor(x * column), top: y * (CELL + GAP), width, height };
  if (panel.type === 'row') {
    return <div style={style} className="row"><Icon name={panel.collapsed ? 'angle-right' : 'angle-down'} /> {panel.title}</div>;
  }
  return (
    <div style={style}><Guard>
      <PanelChrome width={width} height={height} title={panel.title} description={panel.description}
        padding={panel.type === 'table' ? 'none' : 'md'}>
        {(innerWidth, innerHeight) => (
          <Guard><Content panel={panel} frames={frames} width={innerWidth} height={innerHeight} /></Guard>
        )}
      </PanelChrome>
    </Guard></div>
  );
}

async function main() {
  const drawn = await Promise.all(board.panels.map(async (panel: any) => ({
    panel, frames: panel.type === 'row' ? [] : await framesOf(panel, answers[panel.id] ?? [], from, to, theme),
  })));
  const rows = Math.max(...board.panels.map((p: any) => p.gridPos.y + p.gridPos.h));
  const style = document.createElement('style');
  const c = theme.colors;
  style.textContent = `
    @font-face { font-family: Inter; src: local("Inter"); }
    * { box-sizing: border-box; } body { margin: 0; background: ${c.background.canvas}; color: ${c.text.primary};
      font: 14px/1.571 ${theme.typography.fontFamily}; -webkit-font-smoothing: antialiased; }
    .top { display: flex; align-items: center; gap: 8px; padding: 12px 16px 8px; } .top h1 { font-size: 18px; font-weight: 500; margin: 0 12px 0 0; }
    .pick { border: 1px solid ${c.border.weak}; border-radius: 4px; display: flex; font-size: 12px; line-height: 30px; overflow: hidden; }
    .pick b { font-weight: 500; padding: 0 8px; background: ${c.background.secondary}; } .pick span { padding: 0 8px; color: ${c.text.primary}; background: ${c.background.primary}; }
    .time { margin-left: auto; } .row { display: flex; align-items: center; gap: 6px; font-weight: 500; font-size: 16px; }
    .nothing { height: 100%; display: flex; align-items: center; justify-content: center; color: ${c.text.secondary}; font-size: 18px; }
    table { border-collapse: collapse; width: 100%; } ul, p { margin: 0 0 8px; } a { color: ${c.text.link}; }
    table th { font-weight: 500; text-align: left; } button { background: none; border: 0; color: inherit; font: inherit; padding: 0; }
    h1,h2,h3,h4,h5,h6 { font-weight: 500; font-size: 14px; margin: 0; } .markdown-html { font-size: 14px; overflow: hidden; } code { background: ${c.background.canvas}; padding: 1px 4px; }
    .u-legend { font-size: 12px; } .sr-only { position: absolute; width: 1px; height: 1px; overflow: hidden; clip: rect(0 0 0 0); }`;
  document.head.append(style);
  createRoot(document.getElementById('root')!).render(
    <ThemeContext.Provider value={theme}>
      <div className="top">
        <h1>{board.title}</h1>
        {variables.map(([name, value]) => <div className="pick" key={name}><b>{name}</b><span>{value}</span></div>)}
        <div className="pick time"><span><Icon name="clock-nine" size="sm" /> {window.PICTURE.span}</span></div>
      </div>
      <div style={{ position: 'relative', margin: '0 16px', height: rows * (CELL + GAP) }}>
        {drawn.map(({ panel, frames }: any) => <Panel key={panel.id} panel={panel} frames={frames} />)}
      </div>
    </ThemeContext.Provider>
  );
}

main().catch((error) => { document.body.innerText = String(error?.stack ?? error); });
