//! How long processes waited for a resource (pressure stall information), by the kernel's texts
//! (Documentation/accounting/psi.rst); pure. Kernels without it have no such files.

/// What the kernel counts of one kind of waiting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stall {
    /// Microseconds since the beginning.
    pub(crate) total: u64,
    /// The part of the last 10, 60 and 300 seconds, in hundredths of a percent.
    pub(crate) averages: [u32; 3],
}

/// Waiting for one resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stalls {
    /// At least one process waited.
    pub(crate) some: Stall,
    /// No process could do anything else.
    pub(crate) full: Stall,
}

/// Waiting for each resource; `None` where the kernel does not count it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Waits {
    pub(crate) cpu: Option<Stalls>,
    pub(crate) memory: Option<Stalls>,
    pub(crate) io: Option<Stalls>,
}

impl Waits {
    /// By the text of each resource, which `read` returns by the resource's name.
    pub(crate) fn of(read: impl Fn(Resource) -> Option<String>) -> Self {
        let of = |resource| stalls(&read(resource)?);
        Self {
            cpu: of(Resource::Cpu),
            memory: of(Resource::Memory),
            io: of(Resource::Io),
        }
    }
}

/// A resource that is waited for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Resource {
    Cpu,
    Memory,
    Io,
}

impl Resource {
    /// Its controller, and the file in a control group.
    pub(crate) fn of_group(self) -> (&'static str, &'static str) {
        match self {
            Self::Cpu => ("cpu", "cpu.pressure"),
            Self::Memory => ("memory", "memory.pressure"),
            Self::Io => ("io", "io.pressure"),
        }
    }

    /// The file in `/proc`.
    pub(crate) fn of_machine(self) -> &'static str {
        match self {
            Self::Cpu => "pressure/cpu",
            Self::Memory => "pressure/memory",
            Self::Io => "pressure/io",
        }
    }
}

/// Older kernels have no line `full` for processors.
fn stalls(text: &str) -> Option<Stalls> {
    let of = |kind: &str| {
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
        stall(line)
    };
    Some(Stalls {
        some: of("some")?,
        full: of("full").unwrap_or_default(),
    })
}

/// `avg10=0.00 avg60=0.00 avg300=0.00 total=0`
fn stall(line: &str) -> Option<Stall> {
    let of = |name: &str| {
        let mut parts = line.split_whitespace();
        parts.find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
    };
    let average = |name: &str| {
        let (whole, hundredths) = of(name)?.split_once('.')?;
        let (whole, hundredths): (u32, u32) = (whole.parse().ok()?, hundredths.parse().ok()?);
        whole.checked_mul(100)?.checked_add(hundredths)
    };
    Some(Stall {
        total: of("total")?.parse().ok()?,
        averages: [average("avg10")?, average("avg60")?, average("avg300")?],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_texts_are_read_and_nonsense_tells_nothing() {
        let text = "some avg10=1.05 avg60=100.00 avg300=0.10 total=123456\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        let waits = Waits::of(|resource| {
            let name = resource.of_machine();
            (name == "pressure/memory").then(|| text.to_owned())
        });
        let some = Stall {
            total: 123_456,
            averages: [105, 10_000, 10],
        };
        let full = Stall {
            total: 7,
            ..Stall::default()
        };
        let expected = Waits {
            memory: Some(Stalls { some, full }),
            ..Waits::default()
        };
        assert_eq!(waits, expected);
        let (first, _) = text.split_once('\n').unwrap();
        assert_eq!(stalls(first).unwrap().full, Stall::default());
        for nonsense in [
            "",
            "some",
            "some avg10=x total=1",
            "full total=1",
            "some \u{0}",
        ] {
            assert_eq!(stalls(nonsense), None, "{nonsense}");
        }
    }
}
