// The doctor's findings: problems first, with their remedies.

import { get } from "./api.js";
import { h } from "./dom.js";
import { moment } from "./format.js";
import { label, lang, t } from "./i18n.js";
import { chip, command, empty, pending } from "./parts.js";

const LEVEL = { problem: "warning", note: "info", "could not tell": "unknown", good: "ok", "not applicable": "unknown" };
const ORDER = Object.keys(LEVEL);
const AT_LENGTH = new Set(["problem", "note"]);

export const doctor = {
  key: "doctor",

  enter(ctx) {
    this.found = null;
    get("doctor", { lang }).then(({ document }) => { this.found = { document }; ctx.render(); }, (error) => { this.found = { error: error.message }; ctx.render(); });
  },

  render(ctx) {
    const title = h("h1", { class: "unseen" }, t("Doctor"));
    if (!this.found?.document) return [title, pending(this.found, () => this.enter(ctx))];
    const { wall } = this.found.document;
    const { findings } = this.found.document;
    const of = (state) => findings.filter((finding) => finding.state === state);
    const grave = ORDER.filter((state) => AT_LENGTH.has(state)).flatMap(of);
    return [title, h("div", { class: "stack" },
      h("section", { class: "card" },
        h("div", { class: "head" }, h("h2", {}, grave.length ? t("What could be better") : t("Nothing to fix")), h("span", { class: "dim small" }, t("checked at {time}", { time: moment(wall) }))),
        grave.length ? h("ul", { class: "plain-list" }, grave.map(atLength)) : empty(t("Nothing to fix"))),
      ORDER.filter((state) => !AT_LENGTH.has(state)).map((state) => briefly(state, of(state))))];
  },
};

const word = (state) => label("finding", state);

const atLength = (finding) => h("li", {},
  h("div", {}, chip(LEVEL[finding.state], word(finding.state)), " ", h("strong", {}, finding.title)),
  h("p", {}, finding.found), finding.remedy ? h("p", {}, h("span", { class: "dim" }, t("Remedy"), ": "), command(finding.remedy)) : null,
  h("p", { class: "dim small" }, finding.why));

const briefly = (state, findings) => (findings.length ? h("details", { class: "card", "data-key": `state-${state}` },
  h("summary", {}, word(state), h("span", { class: "dim small" }, ` ${findings.length}`)),
  h("ul", { class: "plain-list" }, findings.map((finding) => h("li", {}, finding.title, h("span", { class: "dim" }, " – ", finding.found))))) : null);
