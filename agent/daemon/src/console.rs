//! Messages that a person must see: one line each, on standard output, which init copies to the
//! machine's console.

use agent_enroll::Milestone;
use config_errors::chain;
use config_protocol::Code;
use jiff::Timestamp;

/// Prints one line. Control characters, which only a hostile text would have, are left out.
pub(crate) fn say(text: &str) {
    say_to(&mut std::io::stdout().lock(), text);
}

/// As [`say`], on standard error: for a process whose standard output carries bytes.
pub(crate) fn say_on_error(text: &str) {
    say_to(&mut std::io::stderr().lock(), text);
}

fn say_to(out: &mut impl std::io::Write, text: &str) {
    let clean: String = text.chars().filter(|c| !c.is_control()).collect();
    // Where the console cannot be written to, nothing is left to report that to.
    writeln!(out, "pratique: {clean}")
        .and_then(|()| out.flush())
        .ok();
}

/// Prints a refusal.
pub(crate) fn refused(code: &str, text: &str) {
    // A refusal without proof has no code; its record, which only an admin reads, has one.
    let code = if code == Code::Refused.as_str() {
        String::new()
    } else {
        format!(" {code}")
    };
    say(&format!("REFUSED{code}: {text}"));
}

/// Prints the progress of the enrolment.
pub(crate) fn milestone(milestone: &Milestone<'_>) {
    match milestone {
        Milestone::Enrolling { endpoint } => say(&format!("enrolling with {endpoint}")),
        Milestone::Refused {
            step,
            code,
            message,
            again,
        } => {
            refused(
                code,
                &format!(
                    "{message} ({step}; next attempt in {} s)",
                    again.as_secs().max(1)
                ),
            );
        }
        Milestone::Queued { message, again } => {
            say(&format!(
                "QUEUED: {message} (next look in {} s)",
                again.as_secs().max(1)
            ));
        }
        Milestone::Failed { step, error, again } => {
            say(&format!(
                "not enrolled yet: {} ({step}; next attempt in {} s)",
                chain(error),
                again.as_secs().max(1)
            ));
        }
        Milestone::Enrolled {
            node,
            not_after,
            cost,
        } => {
            let (until, kib, ms) = (
                moment(*not_after),
                cost.bytes.div_ceil(1024),
                cost.time.as_millis(),
            );
            say(&format!(
                "enrolled as {node}, certificate until {until} (exchange: {kib} KiB, {ms} ms)"
            ));
        }
        Milestone::Renewed { not_after } => {
            tracing::info!(until = %moment(*not_after), "certificates renewed");
        }
        Milestone::Expired => say("the certificate has expired without a renewal; joining anew"),
    }
}

/// Unix seconds as a time of day in UTC.
fn moment(seconds: u64) -> String {
    let time = i64::try_from(seconds)
        .ok()
        .and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map_or_else(|| format!("second {seconds}"), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_utc_and_total() {
        assert_eq!(moment(0), "1970-01-01T00:00:00Z");
        assert_eq!(moment(u64::MAX), format!("second {}", u64::MAX));
    }
}
