// Answers of Prometheus as the data frames that Grafana's data source makes of them.
import { DataFrame, Field, FieldType, applyFieldOverrides, cacheFieldDisplayNames, Registry, standardTransformers,
  standardTransformersRegistry, transformDataFrame, GrafanaTheme2 } from '@grafana/data';
import { lastValueFrom } from 'rxjs';

export interface Answer { refId: string; legend: string; format: string; instant: boolean; step: number; result: any[] }

const text = (legend: string, labels: Record<string, string>) => {
  if (legend && legend !== '__auto') {
    return legend.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? '').trim();
  }
  const { __name__, ...rest } = labels;
  return Object.keys(rest).length ? `{${Object.entries(rest).map(([k, v]) => `${k}="${v}"`).join(', ')}}` : 'Value';
};

const number = (value: string) => (value === 'NaN' ? null : Number(value));

function series(answer: Answer, from: number, to: number): DataFrame[] {
  return answer.result.map((one) => {
    const points: Array<[number, string]> = one.values ?? [one.value];
    const labels = { ...one.metric };
    // Gaps are there in Grafana, too: a step without a point is null.
    const seen = new Map(points.map(([t, v]) => [Math.round(t), number(v)]));
    const times: number[] = [];
    if (one.values) {
      for (let t = points[0][0]; t <= points[points.length - 1][0] + 0.5; t += answer.step) times.push(Math.round(t));
    } else {
      times.push(Math.round(points[0][0]));
    }
    const values = times.map((t) => seen.get(t) ?? null);
    const config = { displayNameFromDS: text(answer.legend, labels), interval: answer.step * 1000 };
    const name = config.displayNameFromDS;
    return {
      refId: answer.refId, name, length: times.length, meta: { type: 'timeseries-multi' as any },
      fields: [
        { name: 'Time', type: FieldType.time, config: { interval: answer.step * 1000 }, values: times.map((t) => t * 1000) },
        { name: 'Value', type: FieldType.number, labels, config, values },
      ],
    };
  });
}

function table(answer: Answer, several: boolean): DataFrame {
  const names = [...new Set(answer.result.flatMap((one) => Object.keys(one.metric)))].sort();
  const fields: Field[] = [
    { name: 'Time', type: FieldType.time, config: {}, values: answer.result.map((one) => one.value[0] * 1000) },
    ...names.map((name) => ({
      name, type: FieldType.string, config: { filterable: true }, values: answer.result.map((one) => one.metric[name] ?? ''),
    })),
    { name: several ? `Value #${answer.refId}` : 'Value', type: FieldType.number, config: {},
      values: answer.result.map((one) => number(one.value[1])) },
  ];
  return { refId: answer.refId, length: answer.result.length, fields };
}

let ready = false;

export async function framesOf(panel: any, answers: Answer[], from: number, to: number, theme: GrafanaTheme2) {
  if (!ready) {
    standardTransformersRegistry.setInit(() => [...new Map(Object.values(standardTransformers).map((t: any) => [t.id, t])).values()].map((info: any) => ({
      id: info.id, name: info.name, transformation: () => Promise.resolve(info), editor: () => null, imageDark: '', imageLight: '',
    })) as any);
    ready = true;
  }
  let frames = answers.flatMap((a) => (a.format === 'table' ? [table(a, answers.length > 1)] : series(a, from, to)));
  if (panel.transformations?.length) {
    frames = await lastValueFrom(transformDataFrame(panel.transformations, frames) as any);
  }
  const overrides = panel.fieldConfig?.overrides ?? [];
  const own = Object.keys(panel.fieldConfig?.defaults?.custom ?? {}).map((name) => `custom.${name}`);
  const ids: string[] = [...new Set<string>([
    'unit', 'min', 'max', 'decimals', 'displayName', 'noValue', 'mappings', 'thresholds', 'color', 'links', ...own,
    ...overrides.flatMap((o: any) => o.properties.map((p: any) => p.id)),
  ])];
  const registry = new Registry(() => ids.map((id) => ({
    id, name: id, isCustom: id.startsWith('custom.'), path: id.replace(/^custom\./, ''), process: (v: any) => v,
    shouldApply: () => true, override: () => null, editor: () => null, settings: {},
  })) as any);
  const drawn = applyFieldOverrides({
    data: frames, fieldConfig: panel.fieldConfig ?? { defaults: {}, overrides: [] }, fieldConfigRegistry: registry as any,
    replaceVariables: (s) => s, theme, timeZone: 'utc',
  });
  cacheFieldDisplayNames(drawn);
  return drawn;
}
