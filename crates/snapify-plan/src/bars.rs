//! Bar charts as SVG, for figures that were measured: bars lie, with their values written behind them, so that they can be read
//! in print and on a narrow screen alike.

use crate::svg::{STYLE, escape};
use std::fmt::Write;

/// A chart: groups of bars, one of each series in each.
#[derive(Clone, Debug)]
pub struct Bars {
    /// What it shows.
    pub title: String,
    /// What the series are called.
    pub series: Vec<String>,
    /// Groups: what each is called, and a value for each series. What is not finite is left out, and what is negative has no
    /// length.
    pub groups: Vec<(String, Vec<f64>)>,
    /// How a value is written.
    pub text: fn(f64) -> String,
}

const WIDTH: f64 = 430.0;
const LEFT: f64 = 54.0;
/// Room for a value behind the longest bar.
const RIGHT: f64 = 84.0;
const BAR: f64 = 13.0;
const GAP: f64 = 9.0;
const LEGEND: f64 = 19.0;
const TITLE: f64 = 34.0;
const COLOURS: usize = 5;

/// Charts below each other, as one document. The same charts give the same document, byte for byte.
#[must_use]
pub fn document(title: &str, charts: &[Bars]) -> String {
    let height: f64 = charts.iter().map(Bars::height).sum();
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n<title>{}</title>\n{STYLE}\n\
         <style>{FILLS}</style>\n<rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n",
        escape(title)
    );
    let mut top = 0.0;
    for chart in charts {
        let _ = writeln!(out, "<g transform=\"translate(0 {top})\">");
        chart.draw(&mut out);
        out.push_str("</g>\n");
        top += chart.height();
    }
    out.push_str("</svg>\n");
    out
}

/// The colours of the curves, as areas. In print they differ in lightness too.
const FILLS: &str =
    ".b0{fill:#1b4f7a}.b1{fill:#e08a4a}.b2{fill:#8ec49b}.b3{fill:#8a4fb0}.b4{fill:#d9c45a}";

impl Bars {
    fn legend(&self) -> f64 {
        TITLE + LEGEND * self.series.len() as f64
    }

    fn height(&self) -> f64 {
        let bars: usize = self.groups.iter().map(|(_, values)| values.len()).sum();
        self.legend() + BAR * bars as f64 + GAP * self.groups.len() as f64 + GAP
    }

    fn draw(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "<text class=\"title\" x=\"8\" y=\"22\">{}</text>",
            escape(&self.title)
        );
        for (index, name) in self.series.iter().enumerate() {
            let y = TITLE + LEGEND * index as f64;
            let _ = writeln!(
                out,
                "<rect class=\"b{}\" x=\"{LEFT}\" y=\"{y}\" width=\"22\" height=\"11\"/><text x=\"{}\" y=\"{}\">{}</text>",
                index % COLOURS,
                LEFT + 30.0,
                y + 10.0,
                escape(name)
            );
        }
        let values = || self.groups.iter().flat_map(|(_, values)| values.iter());
        let longest = values().copied().filter(|value| value.is_finite());
        let longest = longest.fold(0.0, f64::max);
        let mut y = self.legend() + GAP;
        for (name, values) in &self.groups {
            let middle = y + BAR * values.len() as f64 / 2.0 + 4.0;
            let _ = writeln!(
                out,
                "<text x=\"{}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                escape(name)
            );
            for (index, value) in values.iter().enumerate() {
                if value.is_finite() {
                    let share = if longest > 0.0 { value / longest } else { 0.0 };
                    let width = share.max(0.0) * (WIDTH - LEFT - RIGHT);
                    let _ = writeln!(
                        out,
                        "<rect class=\"b{}\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{}\"/>\
                         <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                        index % COLOURS,
                        BAR - 1.0,
                        LEFT + width + 5.0,
                        y + BAR - 2.5,
                        escape(&(self.text)(*value))
                    );
                }
                y += BAR;
            }
            y += GAP;
        }
        let floor = y - GAP / 2.0;
        let _ = writeln!(
            out,
            "<path class=\"axis\" d=\"M{LEFT} {:.1}V{floor:.1}\"/>",
            self.legend() + GAP / 2.0
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(groups: Vec<(String, Vec<f64>)>) -> Bars {
        Bars {
            title: "t <1>".into(),
            series: vec!["full".into(), "incremental".into()],
            groups,
            text: |value| format!("{value:.1} s"),
        }
    }

    #[test]
    fn every_bar_has_its_length_and_its_value() {
        let svg = document(
            "all",
            &[chart(vec![
                ("bt".into(), vec![4.0, 1.0]),
                ("cg".into(), vec![2.0, 0.0]),
            ])],
        );
        let lengths: Vec<&str> = svg
            .split("width=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .collect();
        // The paper, the legend, the bars: (430 - 54 - 84) pixels are 4.
        assert_eq!(lengths[1..3], ["22", "22"]);
        assert_eq!(lengths[3..], ["292.0", "73.0", "146.0", "0.0"]);
        for text in [">4.0 s<", ">1.0 s<", ">0.0 s<", ">bt<", "t &lt;1&gt;"] {
            assert!(svg.contains(text), "{text}");
        }
        assert_eq!(
            svg,
            document(
                "all",
                &[chart(vec![
                    ("bt".into(), vec![4.0, 1.0]),
                    ("cg".into(), vec![2.0, 0.0]),
                ])]
            )
        );
    }

    #[test]
    fn what_cannot_be_drawn_is_left_out() {
        for values in [
            vec![],
            vec![f64::NAN, f64::INFINITY],
            vec![-1.0, -2.0],
            vec![0.0, 0.0],
        ] {
            let svg = document("", &[chart(vec![("x".into(), values)])]);
            assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("width=\"-"));
        }
        for charts in [vec![], vec![chart(vec![])]] {
            assert!(document("", &charts).ends_with("</svg>\n"));
        }
    }
}
