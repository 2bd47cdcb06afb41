//! Line charts as SVG: axes, curves and a legend, and nothing else.

use std::fmt::Write;

/// How values lie on an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scale {
    /// Evenly.
    Linear,
    /// By their logarithm.
    Log,
}

/// A curve.
pub(crate) struct Series {
    /// What it is called in the legend.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
    /// Whether it is dashed.
    pub dashed: bool,
}

/// A chart.
pub(crate) struct Chart {
    /// What it shows.
    pub title: String,
    /// What the horizontal axis counts.
    pub x_label: String,
    /// How values lie on the vertical axis; on the horizontal one it is by their logarithm.
    pub y_scale: Scale,
    /// How a value of the vertical axis is written.
    pub y_text: fn(f64) -> String,
    /// The curves.
    pub series: Vec<Series>,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 46.0;

/// Charts below each other, as one document. It has no scripts and refers to nothing, and is dark where the viewer is.
pub(crate) fn document(title: &str, charts: &[Chart]) -> String {
    let height = HEIGHT * charts.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n<title>{}</title>\n{STYLE}\n\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n",
        escape(title)
    );
    for (index, chart) in charts.iter().enumerate() {
        let _ = writeln!(
            out,
            "<g transform=\"translate(0 {})\">",
            HEIGHT * index as f64
        );
        chart.draw(&mut out);
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

pub(crate) const STYLE: &str = "<style>
text{font:12px system-ui,sans-serif;fill:#222}.title{font-size:14px;font-weight:600}.paper{fill:#fff}
.grid{stroke:#ddd;stroke-width:1}.axis{stroke:#444;stroke-width:1}
.curve{fill:none;stroke-width:2}.c0{stroke:#1b6ca8}.c1{stroke:#c8501e}.c2{stroke:#2c8a4b}.c3{stroke:#8a4fb0}.c4{stroke:#a68a12}
@media(prefers-color-scheme:dark){text{fill:#ddd}.paper{fill:#181818}.grid{stroke:#383838}.axis{stroke:#aaa}}
</style>";

const COLOURS: usize = 5;

/// One axis: from values to places.
struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis that holds all of `values`; `None` if there is nothing that could be drawn.
    fn over(scale: Scale, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Option<Self> {
        let fits = |value: &f64| value.is_finite() && (scale == Scale::Linear || *value > 0.0);
        let (low, high) = values
            .filter(fits)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            });
        if low > high {
            return None;
        }
        let (low, high) = match scale {
            Scale::Linear => (
                low.min(0.0),
                if high > low.min(0.0) { high } else { low + 1.0 },
            ),
            Scale::Log => {
                let low = 10f64.powf(low.log10().floor());
                let high = 10f64.powf(high.log10().ceil());
                (low, if high > low { high } else { low * 10.0 })
            }
        };
        Some(Self {
            scale,
            low,
            high,
            from,
            to,
        })
    }

    fn place(&self, value: f64) -> Option<f64> {
        let part = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value / self.low).log10() / (self.high / self.low).log10(),
        };
        let place = self.from + part * (self.to - self.from);
        place.is_finite().then_some(place)
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => (0..=5)
                .map(|n| self.low + (self.high - self.low) * f64::from(n) / 5.0)
                .collect(),
            Scale::Log => {
                let decades = (self.high / self.low).log10().round().clamp(1.0, 40.0) as i32;
                // No more than some eight of them can be read.
                let step = (decades / 8).max(0) + 1;
                (0..=decades)
                    .filter(|decade| decade % step == 0)
                    .map(|decade| self.low * 10f64.powi(decade))
                    .collect()
            }
        }
    }
}

impl Chart {
    fn draw(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "<text class=\"title\" x=\"{LEFT}\" y=\"22\">{}</text>",
            escape(&self.title)
        );
        let points = || self.series.iter().flat_map(|series| series.points.iter());
        let across = Axis::over(
            Scale::Log,
            points().map(|point| point.0),
            LEFT,
            WIDTH - RIGHT,
        );
        let up = Axis::over(
            self.y_scale,
            points().map(|point| point.1),
            HEIGHT - BOTTOM,
            TOP,
        );
        let (Some(across), Some(up)) = (across, up) else {
            return;
        };
        for tick in up.ticks() {
            let Some(y) = up.place(tick) else { continue };
            let _ = writeln!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0,
                escape(&(self.y_text)(tick)),
            );
        }
        let floor = HEIGHT - BOTTOM;
        for tick in across.ticks() {
            let Some(x) = across.place(tick) else {
                continue;
            };
            let _ = writeln!(
                out,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{floor}\"/>\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{tick}</text>",
                floor + 16.0,
            );
        }
        let _ = writeln!(
            out,
            "<path class=\"axis\" fill=\"none\" d=\"M{LEFT} {TOP}V{floor}H{}\"/>\
             <text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            WIDTH - RIGHT,
            (LEFT + WIDTH - RIGHT) / 2.0,
            floor + 34.0,
            escape(&self.x_label),
        );
        for (index, series) in self.series.iter().enumerate() {
            let dash = if series.dashed {
                " stroke-dasharray=\"6 4\""
            } else {
                ""
            };
            let class = format!("curve c{}", index % COLOURS);
            let mut path = String::new();
            for (x, y) in &series.points {
                if let (Some(x), Some(y)) = (across.place(*x), up.place(*y)) {
                    let step = if path.is_empty() { 'M' } else { 'L' };
                    let _ = write!(path, "{step}{x:.1} {y:.1}");
                }
            }
            let y = TOP + 10.0 + 20.0 * index as f64;
            let x = WIDTH - RIGHT + 12.0;
            let _ = writeln!(
                out,
                "<path class=\"{class}\"{dash} d=\"{path}\"/><path class=\"{class}\"{dash} d=\"M{x} {y}h24\"/>\
                 <text x=\"{}\" y=\"{}\">{}</text>",
                x + 30.0,
                y + 4.0,
                escape(&series.name),
            );
        }
    }
}

/// The text with what means something to XML spelled out.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // Not even escaped may control characters stand in XML.
            letter if letter.is_control() => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>, y_scale: Scale) -> String {
        document(
            "a <b> & \"c\"\n",
            &[Chart {
                title: "t".into(),
                x_label: "x".into(),
                y_scale,
                y_text: |value| format!("{value}"),
                series: vec![Series {
                    name: "s".into(),
                    points,
                    dashed: true,
                }],
            }],
        )
    }

    #[test]
    fn text_is_escaped() {
        let svg = chart(vec![(1.0, 1.0)], Scale::Log);
        assert!(
            svg.contains("<title>a &lt;b&gt; &amp; &quot;c&quot; </title>"),
            "{svg}"
        );
    }

    #[test]
    fn curves_go_from_corner_to_corner() {
        let svg = chart(vec![(1.0, 1.0), (1000.0, 1000.0)], Scale::Log);
        assert!(svg.contains("d=\"M80.0 274.0L570.0 36.0\""), "{svg}");
    }

    #[test]
    fn what_cannot_be_drawn_is_left_out() {
        for points in [
            vec![],
            vec![(f64::NAN, 1.0)],
            vec![(1.0, f64::INFINITY)],
            vec![(0.0, 0.0), (-1.0, -1.0)],
            vec![(5.0, 5.0)],
            vec![(1.0, 0.0), (10.0, f64::NAN), (100.0, 3.0)],
        ] {
            for scale in [Scale::Log, Scale::Linear] {
                let svg = chart(points.clone(), scale);
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            }
        }
    }
}
