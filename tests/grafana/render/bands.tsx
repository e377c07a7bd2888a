// State timelines and heat maps, which Grafana publishes no component for: drawn after its own.
import React from 'react';
import { DataFrame, formattedValueToString, getValueFormat, GrafanaTheme2 } from '@grafana/data';
import { interpolateRdYlGn } from 'd3-scale-chromatic';

interface Props { panel: any; frames: DataFrame[]; width: number; height: number; from: number; to: number; theme: GrafanaTheme2 }

function Axis({ left, right, from, to, theme }: any) {
  const span = to - from, steps = [60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000];
  const step = steps.find((s) => span / s <= 10) ?? 864000;
  const marks = [];
  for (let t = Math.ceil(from / step) * step; t <= to; t += step) marks.push(t);
  const word = (t: number) => {
    const at = new Date(t * 1000).toISOString();
    return span > 2 * 86400 ? at.slice(5, 10).replace('-', '/') : at.slice(11, 16);
  };
  return <div style={{ position: 'relative', height: 18, fontSize: 12, color: theme.colors.text.primary }}>
    {marks.map((t) => <span key={t} style={{ position: 'absolute', transform: 'translateX(-50%)',
      left: left + ((right - left) * (t - from)) / span }}>{word(t)}</span>)}
  </div>;
}

function Names({ names, left, rowHeight, theme }: any) {
  return names.map((name: string, i: number) => <div key={i} style={{ position: 'absolute', top: i * rowHeight, height: rowHeight,
    width: left - 8, textAlign: 'right', fontSize: 12, lineHeight: `${rowHeight}px`, color: theme.colors.text.primary,
    overflow: 'hidden', whiteSpace: 'nowrap' }}>{name}</div>);
}

export function Bands({ panel, frames, width, height, from, to, theme }: Props) {
  const names = frames.map((f) => f.name ?? '');
  const left = Math.max(...names.map((n) => n.length)) * 6.7 + 16, legend = new Map<string, string>();
  const rowHeight = (height - 18 - 24) / frames.length, thick = rowHeight * (panel.options.rowHeight ?? 0.9);
  const bars: any[] = [];
  frames.forEach((frame, row) => {
    const [time, value] = frame.fields;
    let start = 0;
    for (let i = 1; i <= frame.length; i++) {
      const goesOn = i < frame.length && value.values[i] === value.values[start];
      if (goesOn) continue;
      const v = value.values[start];
      if (v !== null) {
        const shown = value.display!(v), a = time.values[start] / 1000;
        const end = i < frame.length ? time.values[i] / 1000 : to;
        const x = left + ((width - left) * (a - from)) / (to - from), w = ((width - left) * (end - a)) / (to - from);
        legend.set(shown.text, shown.color!);
        bars.push(<div key={`${row}-${i}`} style={{ position: 'absolute', left: x, width: Math.max(1, w), height: thick,
          top: row * rowHeight + (rowHeight - thick) / 2, background: shown.color, opacity: 0.8, overflow: 'hidden' }}>
          {panel.options.showValue !== 'never' && w > shown.text.length * 7 + 10 && <span style={{ fontSize: 12, padding: '0 5px', lineHeight: `${thick}px`,
            color: theme.colors.getContrastText(shown.color!) }}>{shown.text}</span>}
        </div>);
      }
      start = i;
    }
  });
  return <div>
    <div style={{ position: 'relative', height: height - 18 - 24 }}><Names {...{ names, left, rowHeight, theme }} />{bars}</div>
    <Axis {...{ left, right: width, from, to, theme }} />
    <div style={{ display: 'flex', gap: 16, fontSize: 12, height: 24, alignItems: 'end' }}>
      {[...legend].map(([word, colour]) => <span key={word}><i style={{ display: 'inline-block', width: 14, height: 4, borderRadius: 2,
        background: colour, marginRight: 6, verticalAlign: 'middle' }} />{word}</span>)}
    </div>
  </div>;
}

export function Heat({ panel, frames, width, height, from, to, theme }: Props) {
  const names = frames.map((f) => f.name ?? ''), left = 40, scale = 46, rowHeight = (height - 18 - scale) / frames.length;
  const all = frames.flatMap((f) => f.fields[1].values as number[]).filter((v) => v !== null);
  const low = Math.min(...all), high = Math.max(...all);
  const unit = getValueFormat(panel.options.cellValues?.unit), steps = panel.options.color.steps;
  const colour = (v: number) => interpolateRdYlGn(Math.floor(((v - low) / (high - low || 1)) * (steps - 1)) / (steps - 1));
  const draw = (canvas: HTMLCanvasElement | null) => {
    if (!canvas) return;
    const pen = canvas.getContext('2d')!;
    frames.forEach((frame, row) => {
      const [time, value] = frame.fields, step = (time.config.interval ?? 600000) / 1000;
      for (let i = 0; i < frame.length; i++) {
        if (value.values[i] === null) continue;
        const x = ((width - left) * (time.values[i] / 1000 - from)) / (to - from);
        pen.fillStyle = colour(value.values[i]);
        pen.fillRect(x, row * rowHeight, Math.ceil(((width - left) * step) / (to - from)) + 0.5, rowHeight - 1);
      }
    });
  };
  const marks = [0, 0.25, 0.5, 0.75, 1].map((share) => formattedValueToString(unit(low + share * (high - low), 0)));
  const every = Math.max(1, Math.round(18 / rowHeight));
  return <div>
    <div style={{ position: 'relative', height: height - 18 - scale }}>
      <Names names={names.map((n, i) => (i % every ? '' : n))} {...{ left, rowHeight: rowHeight, theme }} />
      <canvas ref={draw} width={width - left} height={height - 18 - scale} style={{ position: 'absolute', left }} />
    </div>
    <Axis {...{ left, right: width, from, to, theme }} />
    <div style={{ width: 300, marginLeft: left, marginTop: 10, fontSize: 12 }}>
      <div style={{ height: 8, background: `linear-gradient(90deg, ${[0, 0.2, 0.4, 0.6, 0.8, 1].map((s) => interpolateRdYlGn(s)).join(',')})` }} />
      <div style={{ display: 'flex', justifyContent: 'space-between' }}>{marks.map((m, i) => <span key={i}>{m}</span>)}</div>
    </div>
  </div>;
}
