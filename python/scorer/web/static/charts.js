// Draws the figures of a page with Plotly, in the page's own colours.
"use strict";
(() => {
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const narrow = () => matchMedia("(max-width: 820px)").matches;
  const settings = {
    responsive: true,
    displaylogo: false,
    showTips: false,
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
  };

  // Ticks that fit a wide figure would overlap on a phone, so at most four of them are shown.
  const thinned = (given) => {
    if (!narrow() || (given?.tickvals?.length ?? 0) <= 4) return {};
    const every = Math.ceil(given.tickvals.length / 4);
    const kept = (_, place) => place % every === 0;
    return { tickvals: given.tickvals.filter(kept), ticktext: given.ticktext?.filter(kept) };
  };

  const axis = (given, name) => ({
    automargin: true,
    tickangle: 0,
    ...(given?.type === "date" ? { nticks: narrow() ? 3 : 4 } : {}),
    ...given,
    ...(name.startsWith("x") ? thinned(given) : {}),
    gridcolor: style("--line"),
    linecolor: style("--line"),
    zerolinecolor: style("--line"),
    title: typeof given?.title === "string" ? { text: given.title } : given?.title,
  });

  const dressed = (layout) => {
    const made = {
      ...layout,
      title: undefined, // The page shows the title as a heading.
      autosize: true,
      width: undefined,
      height: undefined,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 12, color: style("--muted") },
      margin: { l: 56, r: narrow() ? 12 : 24, t: 12, b: 46 },
      colorway: layout.colorway ?? ["--l0", "--l1", "--l4", "--l2", "--l3"].map(style),
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, ...layout.legend },
      hoverlabel: { font: { family: "system-ui, sans-serif" } },
      dragmode: narrow() ? false : "zoom",
    };
    for (const key of Object.keys(layout)) if (/^[xy]axis\d*$/.test(key)) made[key] = axis(layout[key], key);
    made.xaxis ??= axis({}, "x");
    made.yaxis ??= axis({}, "y");
    return made;
  };

  // Figures contain the colours of a light page. This table maps them to those of a dark page.
  const lighter = {
    "#9D174D": "#F58FB8", "#0072B2": "#56B4E9", "#D55E00": "#FF9A4D", "#009E73": "#3CCFA4",
    "#9467BD": "#C3A1E6", "#8C6D1F": "#D9B95B", "#5B6CC9": "#A3AFF5", "#B0478C": "#F08CCB",
    "#6B7280": "#B4BBC6", "#374151": "#D1D5DB",
    // The sequential scale, reversed: low values are close to the background, high values stand out.
    "#F7FBFF": "#1B2531", "#C6DBEF": "#224766", "#6BAED6": "#2F78AE", "#2171B5": "#67AEE2", "#08306B": "#D3E9FB",
  };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const coloured = (text) =>
    dark.matches ? text.replace(/"(#[0-9A-F]{6})"/g, (whole, colour) => `"${lighter[colour] ?? colour}"`) : text;

  const figures = [...document.querySelectorAll("script[data-plot]")].map((script) => ({
    place: document.getElementById(script.dataset.plot),
    text: script.textContent,
  }));

  const draw = async ({ place, text }) => {
    try {
      const figure = JSON.parse(coloured(text));
      await Plotly.react(place, figure.data, dressed(figure.layout ?? {}), settings);
    } catch (error) {
      place.classList.add("failed");
      place.textContent = `This figure cannot be drawn (${error.message}). Its numbers are in the table below.`;
    }
  };

  const all = async () => {
    for (const one of figures) {
      await draw(one);
      await new Promise((done) => setTimeout(done));
    }
    document.documentElement.dataset.drawn = "yes";
  };

  addEventListener("beforeprint", () => figures.forEach(({ place }) => Plotly.Plots.resize(place)));
  dark.addEventListener("change", all);
  if (window.Plotly) all();
  else
    figures.forEach(({ place }) => {
      place.classList.add("failed");
      place.textContent = "The script that draws this figure did not load. Its numbers are in the table below.";
    });
})();
