//! A failure that a person must see: its code, the causes, what to do, and what init does next.

use std::error::Error;

/// What init does after the line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterFailure {
    /// Stay up without services until a person acts: another try would fail again.
    Hold,
    /// Try again by a reboot after a minute: the cause may pass.
    RebootLater,
}

/// A failure on the way to a running machine.
#[derive(Debug)]
pub struct Fatal {
    /// Stable word for tests and searches, such as `VERITY`.
    pub code: &'static str,
    /// What a person can do about it.
    pub cure: &'static str,
    /// What init does next.
    pub then: AfterFailure,
    cause: Box<dyn Error + Send + Sync>,
}

impl Fatal {
    /// A failure that holds the machine.
    pub fn hold(
        code: &'static str,
        cure: &'static str,
        cause: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self {
            code,
            cure,
            then: AfterFailure::Hold,
            cause: cause.into(),
        }
    }

    /// A failure after which the machine tries again.
    pub fn retry(
        code: &'static str,
        cure: &'static str,
        cause: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self {
            code,
            cure,
            then: AfterFailure::RebootLater,
            cause: cause.into(),
        }
    }

    /// The console line of a failure that doesn't stop the machine.
    pub fn warning(code: &'static str, cause: impl Into<Box<dyn Error + Send + Sync>>) -> String {
        let causes = config_errors::chain(cause.into().as_ref());
        format!("pratique: WARNING {code}: {causes}; the machine goes on")
    }

    /// The console line: code, the whole chain of causes, the cure.
    pub fn line(&self) -> String {
        let causes = config_errors::chain(self.cause.as_ref());
        format!("pratique: FATAL {}: {causes}; {}", self.code, self.cure)
    }
}

#[cfg(test)]
mod tests {
    use super::Fatal;

    #[test]
    fn the_line_has_code_causes_and_cure() {
        let cause = agent_sys::Error::new("mount", "/sysroot", std::io::Error::other("no medium"));
        let line = Fatal::hold("VERITY", "write the image again", cause).line();
        assert_eq!(
            line,
            "pratique: FATAL VERITY: cannot mount /sysroot: no medium; write the image again"
        );
    }
}
