// Asks the search of a site as a browser does: node ask.js FOLDER < a JSON list of queries. Prints the results of
// each, the best first, as [page, anchor].
const fs = require("fs");
const vm = require("vm");

const folder = process.argv[2];
const page = vm.createContext({ _ready: () => {}, SPHINX_HIGHLIGHT_ENABLED: false });
page.window = page;
for (const name of ["_static/searchtools.js", "_static/language_data.js", "searchindex.js"])
  vm.runInContext(fs.readFileSync(`${folder}/${name}`, "utf8"), page);
const answers = JSON.parse(fs.readFileSync(0, "utf8")).map((query) => {
  page.query = query;
  const found = vm.runInContext("Search._performSearch(...Search._parseQuery(query))", page);
  return found.reverse().map(([name, , anchor]) => [name, anchor]);
});
console.log(JSON.stringify(answers));
