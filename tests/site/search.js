// How the search of the site orders what it finds; Sphinx puts this file behind its own searchtools.js, which
// finds only pages that have every word, and lets the best word decide. Here each word counts: more the fewer
// pages have it, and more in the name of a page than in a heading, or in the text. Words that users have for what
// these pages call otherwise are alike. A result leads to the heading that has most of the words.
const ALIKE = [
  "directory folder path location", "int4 uint4 i4 nibble", "int8 uint8 i8", "float16 half f16", "float32 f32",
  "float64 double f64", "bfloat16 bf16", "float8 fp8 f8", "quantized quantised quantization quantisation i8 i4",
  "mismatch incompatible unsupported version", "version release", "upgrade update later release", "pytorch torch",
  "op operator operation", "gpu cuda nvidia", "weight parameter checkpoint", "leak live", "docker podman container",
  "kubernetes k8s pod", "cluster machine", "http rest server serve serving endpoint", "llm language decoder gpt",
  "async asynchronous await asyncio", "timeout cancel deadline", "untrusted stranger malicious hostile sandbox",
  "thread core multithread multithreading", "concurrent thread", "multiple several two many", "slow slower bottleneck profile time",
  "fast faster speed performance", "benchmark measure performance", "convert compile export import",
  "hardware processor cpu", "arm arm64 aarch64", "mac macos osx darwin", "nan inf infinity finite", "layer node dispatch",
  "print show dump", "inspect look inside", "dynamic variable open", "size shape dimension", "jupyter notebook",
  "crash segfault sigill", "opcode instruction", "plugin extension custom", "compare difference differ diff",
  "accuracy precision rounding round", "install pip setup", "config option flag setting", "precompile ahead beforehand warm",
  "startup start cold", "error exception failure", "logging log logger", "tracing trace span telemetry",
  "metric statistic counter prometheus", "rename migrate", "input argument", "output result", "hint stub typing typed",
  "internals architecture works", "debug debugger breakpoint step", "numpy ndarray array", "stream streaming streamed", "model module program", "usage use used", "safe safety",
  "jit compiled native", "environment variable", "allocation memory", "offline network internet",
];
// What users write besides, and what pages have by chance.
const SAYS_NOTHING = "much very than during running happen where did does get make can my want need way while inference";
// Pages that say how to do something stand before those on how jitree is made.
const BY_FOLDER = {
  "docs/": 1.3, "docs/README": 0.3, "docs/how/": 0.8, "docs/layout": 0.6, "docs/tour": 0.8, "index": 0.5, "examples/": 1.1,
  "RATIONALE": 0.3, "CHANGELOG": 0.3, "perf/": 0.7, "tests/": 0.4, "jitree/": 0.7, "parts": 0.3,
};
const NAME = 8, HEADING = 5, TEXT = 2, ALSO = 0.7, PART = 0.4;
var Scorer = {}; // which searchtools.js would take

// Of each page its headings and the names that it explains: text, anchor and words.
const outline = (index, stems) => {
  const pages = index.docnames.map(() => []);
  const add = (page, text, anchor) => pages[page].push({ text, anchor, words: new Set(stems(text)) });
  for (const [text, places] of Object.entries(index.alltitles))
    for (const [page, id] of places) add(page, text, id === null ? "" : "#" + id);
  for (const [prefix, names] of Object.entries(index.objects))
    for (const [page, , , , name] of names) add(page, `${prefix}.${name}`, `#${prefix}.${name}`);
  return pages;
};

// What a word may be in the index instead, and how much that counts.
const alternatives = (index, word, alike) => {
  const found = new Map();
  const known = (other) => Object.hasOwn(index.terms, other) || Object.hasOwn(index.titleterms, other);
  if (!known(word) && word.length > 2)
    for (const terms of [index.terms, index.titleterms])
      for (const other of Object.keys(terms)) if (other.startsWith(word)) found.set(other, PART);
  for (const group of alike) if (group.includes(word)) for (const other of group) found.set(other, ALSO);
  return found.set(word, 1);
};

const ranked = (index, words) => {
  const stemmer = new Stemmer();
  const stems = (text) => splitQuery(text.toLowerCase()).map((word) => stemmer.stemWord(word));
  const pages = outline(index, stems);
  const alike = ALIKE.map(stems);
  const nothing = new Set(stems(SAYS_NOTHING));
  const telling = words.filter((word) => !nothing.has(word));
  const sought = (telling.length ? telling : words).map((word) => {
    const others = alternatives(index, word, alike);
    const best = (has) => Math.max(0, ...[...others].map(([other, much]) => much * has(other)));
    const holds = (terms, other, page) => Object.hasOwn(terms, other) && [terms[other]].flat().includes(page);
    const inHeading = (heading) => best((other) => (heading.words.has(other) ? 1 : 0));
    const weights = pages.map((headings, page) =>
      Math.max(
        best((other) => (holds(index.terms, other, page) ? TEXT : 0)),
        ...headings.map((heading) => inHeading(heading) * (heading.anchor ? HEADING : NAME)),
      ));
    const having = weights.filter((weight) => weight > 0).length;
    return { weights, inHeading, rare: having ? Math.log(1 + pages.length / having) : 0 };
  });
  const all = sought.reduce((sum, { rare }) => sum + rare, 0);
  return pages.flatMap((headings, page) => {
    const found = sought.filter(({ weights }) => weights[page] > 0);
    if (!found.length) return [];
    const named = headings.map((heading) => {
      const has = sought.reduce((sum, { inHeading, rare }) => sum + rare * inHeading(heading), 0);
      return { ...heading, has: has * (has / all) * (0.5 + 0.5 * Math.min(1, found.length / heading.words.size)) };
    }).reduce((best, heading) => (heading.has > best.has ? heading : best), { has: 0, anchor: "", text: "" });
    const folder = Object.entries(BY_FOLDER)
      .reduce((product, [prefix, much]) => (index.docnames[page].startsWith(prefix) ? product * much : product), 1);
    const whole = Math.sqrt(found.reduce((sum, { rare }) => sum + rare, 0) / all);
    const score = found.reduce((sum, { weights, rare }) => sum + rare * weights[page], 0) + HEADING * named.has;
    const title = named.anchor ? `${index.titles[page]} > ${named.text}` : index.titles[page];
    return [[index.docnames[page], title, named.anchor, null, score * whole * folder, index.filenames[page], "text"]];
  }).filter((result, _, all) => 5 * result[4] > Math.max(...all.map((other) => other[4])))
    .sort((one, other) => one[4] - other[4]); // the best is last, which is shown first
};

Search._performSearch = (query, searchTerms) => ranked(Search._index, [...searchTerms]);
