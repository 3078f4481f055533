//! Converts the names and numbers of containers' stop signals.

/// A signal by number or name (`SIGTERM`, `TERM`, `15`), as images write it.
pub(crate) fn signal_number(text: &str) -> Option<u32> {
    let upper = text.to_ascii_uppercase();
    if let Ok(number) = upper.parse::<u32>() {
        return (1..=64).contains(&number).then_some(number);
    }
    let name = if upper.starts_with("SIG") {
        upper
    } else {
        format!("SIG{upper}")
    };
    let offset = |start: &str| {
        let offset: u32 = name.strip_prefix(start)?.parse().ok()?;
        (offset <= 30).then_some(offset)
    };
    if let Some(offset) = offset("SIGRTMIN+") {
        return Some(34 + offset);
    }
    if let Some(offset) = offset("SIGRTMAX-") {
        return Some(64 - offset);
    }
    let name = match name.as_str() {
        "SIGRTMIN" => return Some(34),
        "SIGRTMAX" => return Some(64),
        "SIGIOT" => "SIGABRT",
        "SIGCLD" => "SIGCHLD",
        "SIGPOLL" => "SIGIO",
        other => other,
    };
    let signal: nix::sys::signal::Signal = name.parse().ok()?;
    u32::try_from(signal as i32).ok()
}

/// The name of a signal, as upstream's API writes it.
pub(crate) fn signal_name(number: u32) -> Option<String> {
    let name = match number {
        34 => "SIGRTMIN".to_owned(),
        35..=49 => format!("SIGRTMIN+{}", number - 34),
        50..=63 => format!("SIGRTMAX-{}", 64 - number),
        64 => "SIGRTMAX".to_owned(),
        _ => {
            let signal = nix::sys::signal::Signal::try_from(i32::try_from(number).ok()?);
            signal.ok()?.as_str().to_owned()
        }
    };
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_read_as_images_write_them() {
        assert_eq!(signal_number("SIGTERM"), Some(15));
        assert_eq!(signal_number("quit"), Some(3));
        assert_eq!(signal_number("9"), Some(9));
        assert_eq!(signal_number("SIGRTMIN+3"), Some(37));
        assert_eq!(signal_number("SIGRTMAX-14"), Some(50));
        assert_eq!(signal_number("SIGCLD"), signal_number("SIGCHLD"));
        assert_eq!(signal_number("SIGNOTHING"), None);
        assert_eq!(signal_number("0"), None);
    }

    #[test]
    fn every_signal_that_can_be_asked_for_has_a_name() {
        for number in (1..=31).chain(34..=64) {
            let name = signal_name(number).unwrap();
            assert_eq!(signal_number(&name), Some(number), "{name}");
        }
        assert_eq!(signal_name(15).as_deref(), Some("SIGTERM"));
        assert_eq!(
            (signal_name(0), signal_name(32), signal_name(65)),
            (None, None, None)
        );
    }
}
