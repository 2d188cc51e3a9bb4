// Draws the charts of a page with uPlot, from the numbers in data-chart, in the colours of the theme.
(function () {
  "use strict";
  const drawn = new Map();
  const tones = { succeeded: "--good", failed: "--warn", dead: "--bad", p50: "--line-1", p95: "--line-2", p99: "--line-3" };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  function short(value, unit) {
    if (value == null) return "–";
    if (unit !== "s") return (value >= 10 ? Math.round(value) : Math.round(value * 10) / 10).toLocaleString("en") + " /min";
    if (value < 1) return Math.round(value * 1000) + " ms";
    return value < 120 ? Math.round(value * 10) / 10 + " s" : value < 7200 ? Math.round(value / 60) + " min" : Math.round(value / 3600) + " h";
  }
  function moment(at, times) {
    const date = new Date(at * 1000), two = (part) => String(part).padStart(2, "0");
    const clock = two(date.getHours()) + ":" + two(date.getMinutes());
    if (times[times.length - 1] - times[0] <= 90000) return clock;
    return two(date.getMonth() + 1) + "-" + two(date.getDate()) + (clock === "00:00" ? "" : " " + clock);
  }
  function draw(figure, again) {
    const plot = figure.querySelector(".plot"), text = figure.dataset.chart, known = drawn.get(plot);
    if (known && known.text === text && !again) return;
    const data = JSON.parse(text), values = [data.times, ...Object.values(data.lines)];
    if (known && !again && known.chart.series.length === values.length) {
      known.chart.setData(values);
      known.text = text;
      return;
    }
    if (known) known.chart.destroy();
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--edge"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const chart = new uPlot({
      width: Math.max(200, plot.clientWidth), height: 150,
      cursor: { points: { size: 6 }, y: false },
      legend: { live: true },
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, size: 26, space: 70, values: (_, splits) => splits.map((at) => moment(at, data.times)) }, { ...axis, size: 58, space: 34, values: (_, splits) => splits.map((each) => short(each, data.unit)) }],
      series: [{ label: "at", value: (_, at) => at == null ? "–" : moment(at, data.times) }, ...Object.keys(data.lines).map((name) => ({
        label: name, stroke: colour(tones[name] || "--line-1"), width: 1.5, spanGaps: false, points: { show: data.lines[name].filter((each) => each != null).length < 30, size: 4 },
        value: (_, value) => short(value, data.unit),
      }))],
    }, values, plot);
    drawn.set(plot, { chart, text });
  }
  const all = (again) => document.querySelectorAll("[data-chart]").forEach((figure) => draw(figure, again));
  document.addEventListener("harbor:updated", () => all(false));
  document.addEventListener("harbor:theme", () => all(true));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => all(true));
  let waiting = null;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => drawn.forEach(({ chart }, plot) => chart.setSize({ width: Math.max(200, plot.clientWidth), height: 150 })), 150);
  });
  all(false);
})();
