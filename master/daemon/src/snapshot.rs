//! `master snapshot` and `master restore`: the store as a file, and back.

use crate::{Error, remote, served};
use bytes::Bytes;
use master_attest::StateGeneration;
use master_store::{
    EmbeddedStore, SnapshotBytes, SnapshotSummary, Store as _, StoreError, restore_snapshot,
    verify_snapshot,
};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Where init puts the key of the state's generation.
const GENERATION_KEY: &str = "/run/pratique/state-generation-key";

/// What to take a snapshot of.
#[derive(Debug, clap::Args)]
pub(crate) struct SnapshotArgs {
    /// The data folder of the master.
    #[arg(
        long,
        required_unless_present = "kubeconfig",
        conflicts_with = "kubeconfig"
    )]
    data: Option<PathBuf>,
    /// An admin's kubeconfig: its current context names the master and the user.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// The master's address, https://HOST:PORT, where it is not the kubeconfig's.
    #[arg(long, requires = "kubeconfig")]
    server: Option<String>,
    /// The file to write; it must not exist.
    #[arg(long)]
    out: PathBuf,
}

/// What to restore.
#[derive(Debug, clap::Args)]
pub(crate) struct RestoreArgs {
    /// The snapshot.
    #[arg(long)]
    from: PathBuf,
    /// The data folder of the master to be; it must hold no store.
    #[arg(long)]
    data: PathBuf,
    /// Where the machine's state names its generation; default: DATA/../init/generation, as on a
    /// machine that was booted from an image. There need be none.
    #[arg(long)]
    state_generation: Option<PathBuf>,
    /// The key of that file's text, which init gives for the boot.
    #[arg(long, default_value = GENERATION_KEY)]
    state_generation_key: PathBuf,
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { what, path, source }
}

/// Takes a snapshot.
pub(crate) async fn snapshot(args: SnapshotArgs) -> Result<(), Error> {
    if args.out.exists() {
        let taken = io::Error::from(io::ErrorKind::AlreadyExists);
        return Err(failed("write over", &args.out)(taken));
    }
    // A reader of the file sees a whole one; it holds secrets.
    let mut name = args.out.clone().into_os_string();
    name.push(".unfinished");
    let part = PathBuf::from(name);
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&part);
    let mut file = file.map_err(failed("write", &part))?;
    let outcome = fill(&args, &mut file, &part).await.and_then(|()| {
        let summary = verify_snapshot(&part).map_err(Error::Snapshot)?;
        file.sync_all()
            .and_then(|()| std::fs::rename(&part, &args.out))
            .map_err(failed("write", &args.out))?;
        Ok(summary)
    });
    match outcome {
        Ok(summary) => {
            tell("snapshot taken", &args.out, summary);
            Ok(())
        }
        Err(error) => {
            // The incomplete file is useless.
            std::fs::remove_file(&part).ok();
            Err(error)
        }
    }
}

fn tell(what: &str, path: &Path, summary: SnapshotSummary) {
    let SnapshotSummary {
        revision,
        entries,
        bytes,
        ..
    } = summary;
    tracing::info!(path = %path.display(), revision, objects = entries, bytes, "{what}");
}

async fn fill(args: &SnapshotArgs, file: &mut File, path: &Path) -> Result<(), Error> {
    let mut put = |piece: Bytes| file.write_all(&piece).map_err(failed("write", path));
    if let Some(kubeconfig) = &args.kubeconfig {
        return remote::download(kubeconfig, args.server.as_deref(), "/snapshot", &mut put).await;
    }
    let data = args.data.clone().unwrap_or_default();
    let folder = data.join("store");
    if !folder.is_dir() {
        return Err(failed("find the store in", &folder)(io::Error::from(
            io::ErrorKind::NotFound,
        )));
    }
    match EmbeddedStore::open(&folder) {
        Ok(store) => {
            let everything = store.everything().await.map_err(|source| Error::Store {
                path: folder.clone(),
                source,
            })?;
            SnapshotBytes::new(everything)
                .map_err(failed("begin", path))?
                .try_for_each(put)
        }
        Err(StoreError::Locked(_)) => {
            let kubeconfig = data.join("admin.kubeconfig");
            if !kubeconfig.exists() {
                return Err(Error::Running(data));
            }
            remote::download(&kubeconfig, None, "/snapshot", &mut put).await
        }
        Err(source) => Err(Error::Store {
            path: folder,
            source,
        }),
    }
}

/// Makes a store of a snapshot.
pub(crate) async fn restore(args: &RestoreArgs) -> Result<(), Error> {
    let folder = args.data.join("store");
    let summary = verify_snapshot(&args.from).map_err(Error::Snapshot)?;
    crate::run::make_folder(&folder)?;
    restore_snapshot(&args.from, &folder).map_err(Error::Snapshot)?;
    let store = EmbeddedStore::open(&folder).map_err(|source| Error::Store {
        path: folder.clone(),
        source,
    })?;
    let own = || args.data.join("../init/generation");
    let generation = StateGeneration {
        file: args.state_generation.clone().unwrap_or_else(own),
        key: args.state_generation_key.clone(),
    };
    served::adopt(&store, &folder, &generation).await?;
    tell("store restored", &folder, summary);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use master_store::Op;

    fn args(data: &Path, out: &Path) -> SnapshotArgs {
        SnapshotArgs {
            data: Some(data.to_owned()),
            kubeconfig: None,
            server: None,
            out: out.to_owned(),
        }
    }

    #[tokio::test]
    async fn a_store_without_a_running_master_is_saved_and_restored() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two, file) = (
            dir.path().join("one"),
            dir.path().join("two"),
            dir.path().join("file"),
        );
        let store = EmbeddedStore::open(&one.join("store")).unwrap();
        store
            .commit(vec![Op::create("a/b", Bytes::from("c"))])
            .await
            .unwrap();
        assert!(
            matches!(snapshot(args(&one, &file)).await, Err(Error::Running(_))),
            "it is in use"
        );
        drop(store);
        snapshot(args(&one, &file)).await.unwrap();
        assert!(
            matches!(snapshot(args(&one, &file)).await, Err(Error::File { .. })),
            "it is not written over"
        );
        let restored = RestoreArgs {
            from: file,
            data: two.clone(),
            state_generation: None,
            state_generation_key: GENERATION_KEY.into(),
        };
        restore(&restored).await.unwrap();
        assert!(
            matches!(restore(&restored).await, Err(Error::Snapshot(_))),
            "there is a store now"
        );
        let store = EmbeddedStore::open(&two.join("store")).unwrap();
        assert_eq!(store.get("a/b").await.unwrap().entry.unwrap().value, "c");
        let none = dir.path().join("none");
        assert!(
            snapshot(args(&none, &dir.path().join("other")))
                .await
                .is_err()
                && !none.exists()
        );
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            3,
            "nothing unfinished stays behind"
        );
    }

    #[tokio::test]
    async fn a_running_master_gives_its_store_over_the_network_to_its_admin_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (data, two) = (dir.path().join("data"), dir.path().join("two"));
        let run = crate::RunArgs {
            config: Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../../config/model/examples/cluster.toml"),
            data: data.clone(),
            listen: "127.0.0.1:0".parse().unwrap(),
            attestor: None,
            admin_kubeconfig: None,
            ca_pin: None,
            state_recovery: None,
            recovered_keys: None,
            state_of: None,
            config_event: None,
            state_generation: None,
            state_generation_key: None,
        };
        let mut master = tokio::spawn(crate::run::run(run));
        let kubeconfig = data.join("admin.kubeconfig");
        while !std::fs::read_to_string(&kubeconfig)
            .is_ok_and(|text| text.contains("client-key-data"))
        {
            if let Ok(ended) =
                tokio::time::timeout(std::time::Duration::from_millis(5), &mut master).await
            {
                panic!(
                    "the master ended: {:?}",
                    ended.unwrap().map_err(|error| crate::chain(&error))
                );
            }
        }
        let asked = |kubeconfig: &Path, out: &str| SnapshotArgs {
            data: None,
            kubeconfig: Some(kubeconfig.to_owned()),
            server: None,
            out: dir.path().join(out),
        };
        snapshot(asked(&kubeconfig, "by-kubeconfig")).await.unwrap();
        snapshot(args(&data, &dir.path().join("by-data")))
            .await
            .unwrap();
        // A client that trusts the master but is unknown to it gets nothing.
        let stranger = dir.path().join("stranger");
        let text = std::fs::read_to_string(&kubeconfig)
            .unwrap()
            .replace("client-certificate-data", "forgotten");
        std::fs::write(&stranger, text).unwrap();
        let refused = snapshot(asked(&stranger, "none")).await.unwrap_err();
        assert!(
            crate::chain(&refused).contains("403"),
            "{}",
            crate::chain(&refused)
        );
        assert!(!dir.path().join("none").exists() && !dir.path().join("none.unfinished").exists());
        master.abort();
        restore(&RestoreArgs {
            from: dir.path().join("by-kubeconfig"),
            data: two.clone(),
            state_generation: None,
            state_generation_key: GENERATION_KEY.into(),
        })
        .await
        .unwrap();
        let store = EmbeddedStore::open(&two.join("store")).unwrap();
        assert!(
            store
                .get("namespaces/default")
                .await
                .unwrap()
                .entry
                .is_some()
        );
    }
}
