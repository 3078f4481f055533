//! `cargo xtask bench image`: what the images weigh, part by part, and what in them can be
//! executed.

use crate::build;
use crate::host;
use crate::steps::{Failure, Outcome, Steps};
use serde_json::Value;

/// Sizes of both images by part, and their executables.
pub(super) fn image(profile: build::Profile) -> Outcome {
    let mut steps = Steps::new();
    host::check()?;
    steps.step("packages", host::packages)?;
    build::everything(&mut steps, profile, false)?;
    for role in ["worker", "master"] {
        let file = build::images().join(format!("{role}.parts.json"));
        let text = std::fs::read(&file).map_err(|error| {
            Failure::new(format!("cannot read {}: {error}", file.display()), "")
        })?;
        let sizes: Value =
            serde_json::from_slice(&text).map_err(|error| Failure::new(error.to_string(), ""))?;
        println!("\n{role} image: {:.1} MiB in use", mib(&sizes["total"]));
        for part in sizes["parts"].as_array().into_iter().flatten() {
            println!(
                "  {:>8.2} MiB  {}",
                mib(&part["size"]),
                part["name"].as_str().unwrap_or_default()
            );
        }
        let executables = sizes["executables"].as_array().cloned().unwrap_or_default();
        println!("  {} executables:", executables.len());
        for executable in &executables {
            println!("    {}", executable.as_str().unwrap_or_default());
        }
    }
    Ok(())
}

fn mib(bytes: &Value) -> f64 {
    bytes.as_f64().unwrap_or_default() / f64::from(1 << 20)
}
