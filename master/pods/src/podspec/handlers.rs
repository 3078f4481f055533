//! Validation of probes and lifecycle hooks.

use super::context::Context;
use master_schema::validate::forms::{choice, has, needed, not_negative, number, word};
use master_schema::validate::{Faults, FieldPath, Fields, get, items, net, object, text};
use serde_json::Value;

/// Validates the three probes of a container.
pub(super) fn probes(
    container: &Fields,
    context: &Context<'_>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    for (key, repeats) in [
        ("livenessProbe", false),
        ("readinessProbe", true),
        ("startupProbe", false),
    ] {
        let Some(probe) = object(container, key) else {
            continue;
        };
        let place = at.field(key);
        self::probe(probe, context, &place, faults);
        if repeats {
            // A readiness probe that fails ends nothing, so there is no grace period (KEP-2238).
            if has(probe, "terminationGracePeriodSeconds") {
                let value = get(probe, "terminationGracePeriodSeconds");
                faults.invalid(
                    &place.field("terminationGracePeriodSeconds"),
                    value,
                    "must not be set for readinessProbes",
                );
            }
        } else if number(probe, "successThreshold") != 1 {
            faults.invalid(
                &place.field("successThreshold"),
                &number(probe, "successThreshold").into(),
                "must be 1",
            );
        }
    }
}

fn probe(probe: &Fields, context: &Context<'_>, at: &FieldPath<'_>, faults: &mut Faults) {
    handler(
        probe,
        &["exec", "httpGet", "tcpSocket", "grpc"],
        context,
        at,
        faults,
    );
    for key in [
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    ] {
        not_negative(probe, key, at, faults);
    }
    let grace = get(probe, "terminationGracePeriodSeconds");
    if grace.as_i64().is_some_and(|grace| grace <= 0) {
        faults.invalid(
            &at.field("terminationGracePeriodSeconds"),
            grace,
            "must be greater than 0",
        );
    }
}

/// Validates the hooks and the stop signal of a container.
pub(super) fn lifecycle(
    container: &Fields,
    spec: &Fields,
    context: &Context<'_>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    let Some(lifecycle) = object(container, "lifecycle") else {
        return;
    };
    let at = at.field("lifecycle");
    for hook in ["postStart", "preStop"] {
        if let Some(fields) = object(lifecycle, hook) {
            handler(
                fields,
                &["exec", "httpGet", "tcpSocket", "sleep"],
                context,
                &at.field(hook),
                faults,
            );
        }
    }
    if has(lifecycle, "stopSignal") {
        stop_signal(
            get(lifecycle, "stopSignal"),
            spec,
            &at.field("stopSignal"),
            faults,
        );
    }
}

/// Names of Linux signals, without real-time signals.
const SIGNALS: &[&str] = &[
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

fn is_signal(name: &str) -> bool {
    let number = |text: &str| text.parse::<u8>().ok();
    SIGNALS.contains(&name)
        || matches!(name, "SIGRTMIN" | "SIGRTMAX")
        || name
            .strip_prefix("SIGRTMIN+")
            .and_then(number)
            .is_some_and(|number| (1..=15).contains(&number))
        || name
            .strip_prefix("SIGRTMAX-")
            .and_then(number)
            .is_some_and(|number| (1..=14).contains(&number))
}

fn stop_signal(value: &Value, spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    match object(spec, "os").map_or("", |os| text(os, "name")) {
        // Which names there are depends on the operating system (KEP-4960).
        "" => faults.forbidden(
            at,
            "may not be set for containers with empty `spec.os.name`",
        ),
        "windows" => faults.one_of(at, value, &["SIGKILL", "SIGTERM"]),
        _ if value.as_str().is_some_and(is_signal) => {}
        _ => faults.unsupported(at, value, SIGNALS),
    }
}

/// Validates one handler, of the types that are possible here.
fn handler(
    fields: &Fields,
    kinds: &[&'static str],
    context: &Context<'_>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    let mut first = true;
    for kind in kinds {
        let Some(handler) = object(fields, kind) else {
            continue;
        };
        let place = at.field(kind);
        if !first {
            faults.forbidden(&place, "may not specify more than 1 handler type");
            continue;
        }
        first = false;
        match *kind {
            "exec" if items(handler, "command").is_empty() => {
                faults.required(&place.field("command"), "");
            }
            "httpGet" => http(handler, &place, faults),
            "tcpSocket" | "grpc" => {
                net::port_or_name(get(handler, "port"), &place.field("port"), faults);
            }
            "sleep" => sleep(handler, context.grace, &place, faults),
            _ => {}
        }
    }
    if first {
        faults.required(at, "must specify a handler type");
    }
}

fn http(handler: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    needed(handler, "path", at, faults);
    net::port_or_name(get(handler, "port"), &at.field("port"), faults);
    choice(handler, "scheme", at, &["HTTP", "HTTPS"], faults);
    for header in items(handler, "httpHeaders")
        .iter()
        .filter_map(Value::as_object)
    {
        let name = text(header, "name");
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            let words = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex \
                         used for validation is '[-A-Za-z0-9]+')";
            faults.invalid(&at.field("httpHeaders"), word(header, "name"), words);
        }
    }
}

fn sleep(handler: &Fields, grace: Option<i64>, at: &FieldPath<'_>, faults: &mut Faults) {
    // KEP-3960; zero came with KEP-4818. The text says less, the check allows equal (upstream).
    let seconds = number(handler, "seconds");
    if let Some(grace) = grace
        && !(0..=grace).contains(&seconds)
    {
        let words =
            format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        faults.invalid(at, &seconds.into(), words);
    }
}
