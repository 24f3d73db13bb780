// Charts of numbers over time, and the box that chooses all rows of a table.
"use strict";

const REFRESH_MILLISECONDS = 5000;
const CHART_HEIGHT = 180;
const COLOURS = ["#3b6cff", "#1f9d61", "#c07a00", "#d33d36"];

function growthOf(values, at) {
  // The growth each second: counters say how much there was, a chart how fast it grows.
  return values.map((each, n) => n === 0 || each === null || values[n - 1] === null
    ? null : Math.max(each - values[n - 1], 0) / (at[n] - at[n - 1]));
}

function drawn(box) {
  let plot = null;
  async function refresh() {
    const answer = await fetch(box.dataset.chart, { headers: { Accept: "application/json" } });
    if (!answer.ok) { return; }
    const found = await answer.json();
    const names = Object.keys(found.values);
    const lines = names.map((name) => box.dataset.growth ? growthOf(found.values[name], found.at) : found.values[name]);
    const data = [found.at, ...lines];
    if (plot !== null && plot.series.length === data.length) {
      plot.setData(data);
    } else if (names.length > 0) {
      const colour = getComputedStyle(document.body).color;
      const axis = { stroke: colour, grid: { stroke: "rgba(128,128,128,.25)", width: 1 } };
      const series = names.map((name, n) => ({ label: name, stroke: COLOURS[n % COLOURS.length], width: 2, spanGaps: true }));
      plot = new uPlot({ width: box.clientWidth, height: CHART_HEIGHT, series: [{}, ...series], axes: [axis, axis] }, data, box);
    }
  }
  window.addEventListener("resize", () => plot && plot.setSize({ width: box.clientWidth, height: CHART_HEIGHT }));
  refresh();
  setInterval(() => { if (!document.hidden) { refresh(); } }, REFRESH_MILLISECONDS);
}

document.querySelectorAll("[data-chart]").forEach(drawn);
document.querySelectorAll("[data-all]").forEach((all) => all.addEventListener("change", () => {
  all.closest("form").querySelectorAll("input[name=id]").forEach((each) => { each.checked = all.checked; });
}));
