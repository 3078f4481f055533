//! The Prometheus text format, version 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>).

use std::fmt::Write as _;

/// A number in the text format.
#[derive(Debug, Clone, Copy)]
pub enum Figure {
    /// An integer.
    Whole(i128),
    /// A floating-point number.
    Real(f64),
}

impl From<u64> for Figure {
    fn from(value: u64) -> Self {
        Self::Whole(value.into())
    }
}

impl From<i64> for Figure {
    fn from(value: i64) -> Self {
        Self::Whole(value.into())
    }
}

impl From<f64> for Figure {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

/// The text as it is written. Writing to a `String` does not fail.
#[derive(Debug, Default)]
pub struct Text(String);

impl Text {
    /// Begins a metric family.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _infallible = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// One sample; `labels` is the text between the braces.
    pub fn sample(&mut self, name: &str, labels: &str, value: impl Into<Figure>) {
        self.value(name, labels, value.into());
        self.0.push('\n');
    }

    /// One sample with a timestamp, in milliseconds since 1970.
    pub fn sample_at(&mut self, name: &str, labels: &str, value: impl Into<Figure>, at: i64) {
        self.value(name, labels, value.into());
        let _infallible = writeln!(self.0, " {at}");
    }

    fn value(&mut self, name: &str, labels: &str, value: Figure) {
        self.0.push_str(name);
        if !labels.is_empty() {
            let _infallible = write!(self.0, "{{{labels}}}");
        }
        let _infallible = match value {
            Figure::Whole(value) => write!(self.0, " {value}"),
            Figure::Real(value) if value.is_infinite() && value > 0.0 => write!(self.0, " +Inf"),
            Figure::Real(value) => write!(self.0, " {value}"),
        };
    }

    /// A family of one sample.
    pub fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Into<Figure>) {
        self.family(name, kind, help);
        self.sample(name, "", value);
    }

    /// A histogram's samples, with these labels or none. `counts` has one more element than
    /// `bounds`: the values above all of them.
    pub(crate) fn histogram(
        &mut self,
        name: &str,
        labels: &str,
        bounds: &[f64],
        counts: &[u64],
        sum: f64,
    ) {
        let bucket = format!("{name}_bucket");
        let comma = if labels.is_empty() { "" } else { "," };
        let mut total = 0;
        for (bound, count) in bounds.iter().zip(counts) {
            total += count;
            self.sample(&bucket, &format!("{labels}{comma}le=\"{bound}\""), total);
        }
        total += counts.last().copied().unwrap_or_default();
        self.sample(&bucket, &format!("{labels}{comma}le=\"+Inf\""), total);
        self.sample(&format!("{name}_sum"), labels, sum);
        self.sample(&format!("{name}_count"), labels, total);
    }

    /// The text.
    #[must_use]
    pub fn finish(self) -> String {
        self.0
    }
}
