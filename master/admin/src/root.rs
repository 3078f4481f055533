//! `pratique root`: shows the cluster's root, and rotates it: both roots count until the admin ends
//! the old one.

use crate::error::{Error, Result};
use crate::files::{read_text, replace_private, say, tell};
use crate::kubeconfig::{self, Api};
use crate::runtime::block_on;
use http::Method;
use master_ca::{AdminAccess, CERTIFICATE_PATH, ROOT_PATH, RootPhase, Rotation, UnreadyNode};
use serde::de::DeserializeOwned;
use std::path::PathBuf;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum RootCommand {
    /// Show the roots by which the cluster is known, and who is not ready for the new one.
    Show(Access),
    /// Make another root. Both count from then on; the kubeconfig is brought up to it, and the new
    /// pin is printed.
    Rotate(Access),
    /// Bring a kubeconfig up to the roots in force, with a new certificate for its key.
    Trust(Access),
    /// Remove the old root; machines that pin only it can no longer connect. Refused while a node
    /// is not ready for the new one.
    Finish {
        #[command(flatten)]
        access: Access,
        /// Leave behind the nodes that are not ready.
        #[arg(long)]
        force: bool,
    },
    /// Discard the new root and keep the old one.
    Abandon(Access),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Access {
    /// The admin's kubeconfig; updated if the command changes the roots that it must trust.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: PathBuf,
}

/// Runs the command.
pub(crate) fn run(command: &RootCommand) -> Result<()> {
    block_on(async {
        match command {
            RootCommand::Show(access) => show(access).await,
            RootCommand::Rotate(access) => rotate(access).await,
            RootCommand::Trust(access) => trust(access).await,
            RootCommand::Finish { access, force } => finish(access, *force).await,
            RootCommand::Abandon(access) => abandon(access).await,
        }
    })
}

async fn show(access: &Access) -> Result<()> {
    say(&text(&act(access, Method::GET, "").await?));
    Ok(())
}

async fn rotate(access: &Access) -> Result<()> {
    let rotation = act(access, Method::POST, "/rotate").await?;
    trust(access).await?;
    tell("both roots count now");
    say(&text(&rotation));
    Ok(())
}

async fn finish(access: &Access, force: bool) -> Result<()> {
    // A certificate that ends with the old root would lock the admin out.
    trust(access).await?;
    let rotation = act(
        access,
        Method::POST,
        if force {
            "/finish?force=true"
        } else {
            "/finish"
        },
    )
    .await?;
    trust(access).await?;
    tell(
        "the old root is removed: delete its pin from user-data when convenient, and renew other admins' kubeconfigs",
    );
    say(&text(&rotation));
    Ok(())
}

async fn abandon(access: &Access) -> Result<()> {
    let rotation = act(access, Method::POST, "/abandon").await?;
    trust(access).await?;
    tell("the new root is gone: take its pin out of user-data");
    say(&text(&rotation));
    Ok(())
}

async fn act(access: &Access, method: Method, below: &str) -> Result<Rotation> {
    let mut api = Api::open(&access.kubeconfig).await?;
    ask(&mut api, method, &format!("{ROOT_PATH}{below}")).await
}

async fn ask<T: DeserializeOwned>(api: &mut Api, method: Method, path: &str) -> Result<T> {
    let value = api.must(method, path, None).await?;
    serde_json::from_value(value).map_err(|error| Error::Answer {
        what: path.to_owned(),
        why: error.to_string(),
    })
}

/// Writes the roots in force and a new certificate into the kubeconfig.
async fn trust(access: &Access) -> Result<()> {
    let mut api = Api::open(&access.kubeconfig).await?;
    let fresh: AdminAccess = ask(&mut api, Method::POST, CERTIFICATE_PATH).await?;
    let path = &access.kubeconfig;
    let text = kubeconfig::renewed(path, &read_text(path)?, &fresh.roots, &fresh.certificate)?;
    replace_private(path, text.as_bytes())?;
    tell(&format!(
        "brought {} up to the roots in force",
        path.display()
    ));
    Ok(())
}

/// The state of the rotation, for a person.
fn text(rotation: &Rotation) -> String {
    let mut lines = Vec::new();
    for root in &rotation.roots {
        let until = i64::try_from(root.not_after)
            .ok()
            .and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
        let until = until.map(|until| until.to_string()).unwrap_or_default();
        let phase = match root.phase {
            RootPhase::Only => "the only root",
            RootPhase::Old => "the old root",
            RootPhase::New => "the new root",
        };
        lines.push(format!("{}  {phase}, until {until}", root.pin));
    }
    if let Some(since) = &rotation.since {
        let pins: Vec<String> = rotation
            .roots
            .iter()
            .map(|root| format!("\"{}\"", root.pin))
            .collect();
        lines.push(format!(
            "both count since {since}; in user-data until the old one is ended:"
        ));
        lines.push(format!("ca_pins = [{}]", pins.join(", ")));
        let line = |waiting: &UnreadyNode| format!("  {}: {}", waiting.name, waiting.why);
        if rotation.waiting.is_empty() {
            lines.push(
                "every node is ready for the new root: `pratique root finish` ends the old one"
                    .to_owned(),
            );
        } else {
            lines.push(format!(
                "{} not ready for the new root:",
                rotation.waiting.len()
            ));
            lines.extend(rotation.waiting.iter().map(line));
        }
        if !rotation.aside.is_empty() {
            lines.push("not waited for:".to_owned());
            lines.extend(rotation.aside.iter().map(line));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use master_ca::RootInForce;

    #[test]
    fn the_pins_are_shown_as_in_user_data_with_nodes_that_lack_one() {
        let root = |pin: &str, phase| RootInForce {
            pin: pin.to_owned(),
            phase,
            not_after: 0,
            certificate: String::new(),
        };
        let mut rotation = Rotation {
            roots: vec![
                root("sha256:aa", RootPhase::Old),
                root("sha256:bb", RootPhase::New),
            ],
            since: Some("2026-11-22T00:00:00Z".to_owned()),
            waiting: vec![UnreadyNode {
                name: "worker-1".to_owned(),
                why: "its pin is missing".to_owned(),
            }],
            aside: Vec::new(),
        };
        let shown = text(&rotation);
        assert!(
            shown.contains("ca_pins = [\"sha256:aa\", \"sha256:bb\"]"),
            "{shown}"
        );
        assert!(
            shown.contains("  worker-1: its pin is missing") && !shown.contains("finish"),
            "{shown}"
        );
        rotation.waiting.clear();
        assert!(text(&rotation).contains("root finish"));
    }
}
