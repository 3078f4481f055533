//! The paths below volumes that a container's mounts show: `subPath` and `subPathExpr` (pure).

use crate::volumes::VolumeLocation;
use agent_content::variables::PathVars;
use config_kube::k8s_openapi::api::core::v1::VolumeMount;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

/// Most folders on the ways to what the mounts of a container show, each counted once. The agent
/// makes those that are missing: in a volume in memory each takes a kibibyte that is charged to the
/// agent, and a few variables can name millions. As many take less than the runtime's process
/// beside a container does.
const MOST_FOLDERS: usize = 1024;
/// Longest path that the kernel takes (`PATH_MAX` without the final NUL).
const LONGEST: usize = 4095;

/// The path of each mount, in their order; none where it shows the whole volume.
///
/// # Errors
/// A variable of one isn't set, or they have more folders together than the agent makes.
pub(crate) fn sub_paths(
    mounts: &[VolumeMount],
    vars: &PathVars<'_>,
    volumes: &BTreeMap<String, VolumeLocation>,
) -> Result<Vec<Option<String>>, String> {
    let paths = mounts.iter().map(|mount| sub_path(mount, vars));
    let paths = paths.collect::<Result<Vec<_>, String>>()?;
    check(mounts, &paths, volumes)?;
    Ok(paths)
}

fn check(
    mounts: &[VolumeMount],
    paths: &[Option<String>],
    volumes: &BTreeMap<String, VolumeLocation>,
) -> Result<(), String> {
    let mut folders = HashSet::new();
    for (mount, path) in mounts.iter().zip(paths) {
        let is_made = is_made(volumes.get(&mount.name));
        let Some(path) = path.as_deref().filter(|_| is_made) else {
            continue;
        };
        if path.len() > LONGEST {
            let name = &mount.name;
            return Err(format!(
                "a path below the volume {name:?} is longer than {LONGEST} bytes"
            ));
        }
        for folder in Path::new(path).ancestors() {
            // Those above one that is counted are counted, too.
            if folder.as_os_str().is_empty() || !folders.insert((&mount.name, folder)) {
                break;
            }
        }
        if folders.len() > MOST_FOLDERS {
            return Err(format!(
                "the volumeMounts of a container may name {MOST_FOLDERS} folders of volumes by subPath and subPathExpr, \
                 with those above them, and these name more"
            ));
        }
    }
    Ok(())
}

fn sub_path(mount: &VolumeMount, vars: &PathVars<'_>) -> Result<Option<String>, String> {
    let filled = |path: &Option<String>| path.clone().filter(|path| !path.is_empty());
    let Some(text) = filled(&mount.sub_path_expr) else {
        return Ok(filled(&mount.sub_path));
    };
    let path = vars.sub_path(&text).map_err(|error| {
        let name = &mount.name;
        format!("subPathExpr {text:?} of volume {name:?}: {error}")
    });
    path.map(Some)
}

/// Whether folders that are missing in a volume are made: neither in what the agent fills nor in an
/// image.
fn is_made(volume: Option<&VolumeLocation>) -> bool {
    match volume {
        None | Some(VolumeLocation::Held(_) | VolumeLocation::Image { .. }) => false,
        Some(
            VolumeLocation::Own(_)
            | VolumeLocation::Host(..)
            | VolumeLocation::Driver(_)
            | VolumeLocation::ReadOnly(_),
        ) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// How many paths there are of as many mounts of a volume, by a variable of 100 folders.
    fn shown(volume: &str, count: usize, expr: impl Fn(usize) -> String) -> Result<usize, String> {
        let mount = |number: usize| VolumeMount {
            name: volume.to_owned(),
            mount_path: format!("/m/{number}"),
            sub_path_expr: Some(expr(number)),
            ..VolumeMount::default()
        };
        let mounts: Vec<_> = (0..count).map(mount).collect();
        let vars = [("DEEP".to_owned(), vec!["d"; 100].join("/"))];
        let volumes = BTreeMap::from([
            ("own".to_owned(), VolumeLocation::Own(PathBuf::new())),
            ("held".to_owned(), VolumeLocation::Held(PathBuf::new())),
        ]);
        let paths = sub_paths(&mounts, &PathVars::of(&vars), &volumes)?;
        Ok(paths.into_iter().flatten().count())
    }

    #[test]
    fn a_few_variables_name_no_more_folders_than_the_agent_makes() {
        let apart = |number: usize| format!("{number}/$(DEEP)");
        assert_eq!(shown("own", 10, apart), Ok(10));
        let refused = shown("own", 11, apart).unwrap_err();
        assert!(refused.contains("1024 folders"), "{refused}");
        // The agent makes none there.
        assert_eq!(shown("held", 11, apart), Ok(11));
        // A folder above several counts once.
        let together = |number: usize| format!("$(DEEP)/{number}");
        assert_eq!(shown("own", 900, together), Ok(900));
        assert!(shown("own", 1000, together).is_err());
    }
}
