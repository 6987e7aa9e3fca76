// How the search orders pages: those that say how to do something first, those on how jitree is made last.
const BY_FOLDER = {
  "docs/": 12, "docs/README": -12, "docs/how/": 2, "examples/": 4, "reference/": 0, "SECURITY": 2,
  "RATIONALE": -20, "CHANGELOG": -20, "perf/": -8, "tests/": -20, "jitree/": -4, "parts": -20
};
var Scorer = {
  score: ([docname, title, anchor, description, score]) =>
    score + Object.entries(BY_FOLDER).reduce((sum, [folder, more]) => sum + (docname.startsWith(folder) ? more : 0), 0),
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2
};
