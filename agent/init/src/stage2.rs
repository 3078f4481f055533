//! The second stage: from the verified root to supervised services.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use agent_metadata::Setting;
use agent_sys::landlock::Domain;
use agent_sys::process::Program;
use agent_sys::signal::Signals;
use config_machine::containerd;
use config_machine::kernel::{LAST, SYSCTLS, Weight};
use config_machine::programs::SEARCH_PATH;

use crate::console::Console;
use crate::fatal::{AfterFailure, Fatal};
use crate::mounts::{self, directory};
use crate::services::{self, Service, UNHEALTHY_LIMIT};
use crate::settings::{self, Image};
use crate::state::Opened;
use crate::supervisor::ServiceOptions;
use crate::unlock::Owner;
use crate::user_data::{Found, SourceError};
use crate::{allowed, cloud, generation, hardening, measure, modules, source, state, state_text};

const CGROUPS: &str = "/sys/fs/cgroup";
const MODULE_LIST: &str = "/usr/lib/pratique/modules";
const KERNEL_CURE: &str = "boot this image's own kernel file, unchanged; if it is, this is a fault of the image: report it";

/// Too many boots in which init gave up on a service.
#[derive(Debug, thiserror::Error)]
#[error("the last {0} boots ended because a service could not be kept alive")]
struct Unhealthy(u32);

/// Runs the second stage. After any failure init stays up, so that a person can read the console
/// and switch the machine off, unless a reboot may help.
pub fn run(console: &Console) -> ExitCode {
    let signals = match Signals::open() {
        Ok(signals) => signals,
        Err(cause) => {
            let fatal = Fatal::retry("INIT", "a fault of this image: report it", cause);
            console.fatal(&fatal);
            return crate::initrd::stop(&fatal);
        }
    };
    let (ready, domain) = match steps(console) {
        Ok((ready, domain)) => (ready, Some(domain)),
        Err(fatal) => {
            console.fatal(&fatal);
            if fatal.then == AfterFailure::RebootLater {
                return crate::initrd::stop(&fatal);
            }
            console.milestone("held: no service is started");
            (Vec::new(), None)
        }
    };
    services::run(console, signals, ready, domain)
}

/// All steps before the services; returns the services, and the domain for contained ones.
fn steps(console: &Console) -> Result<(Vec<Service>, Domain), Fatal> {
    let image = prepare(console)?;
    let command_line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let hash = settings::root_hash(&command_line).unwrap_or_default();
    let (owner, early) = owner(console, &image)?;
    let state = state::open(console, &hash, owner)?;
    console.milestone(&state_text::mounted());
    let count = services::unhealthy_boots();
    if count >= UNHEALTHY_LIMIT {
        services::forget_unhealthy_boots();
        let cure = "read /var/log/pratique, then power off and on to try again";
        return Err(Fatal::hold("SERVICE", cure, Unhealthy(count)));
    }
    let found = early.map_or_else(|| find(console, &image), Ok)?;
    let digest = configure(console, &found)?;
    allowed::check(Path::new(allowed::LIST), state.generation.as_ref(), &digest)?;
    let domain = Domain::new().map_err(|cause| Fatal::hold("KERNEL", KERNEL_CURE, cause))?;
    Ok((table(&image, &state), domain))
}

/// Mounts, modules, kernel settings, clock: all that depends only on the image.
fn prepare(console: &Console) -> Result<Image, Fatal> {
    let broken =
        |cause: agent_sys::Error| Fatal::retry("INIT", "a fault of this image: report it", cause);
    warn(console, "PRIVATE", agent_sys::process::keep_private().err());
    warn(console, "MEMORY", agent_sys::power::stay_in_memory().err());
    warn(
        console,
        "POWER",
        agent_sys::power::catch_ctrl_alt_del().err(),
    );
    if let Err(cause) = hardening::unbind_users() {
        console.line(&Fatal::warning("LIMITS", cause));
    }
    // Before the modules: network cards inherit the values under `default` when they appear.
    harden(console)?;
    for cause in modules::load_list(MODULE_LIST, "/") {
        warn(console, "MODULE", Some(cause));
    }
    hardening::set(Path::new(hardening::SETTINGS), &LAST).map_err(not_in_force)?;
    mounts::apply(&mounts::LATE).map_err(broken)?;
    let command_line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let lockdown = hardening::prove(Path::new("/"), &command_line).map_err(not_in_force)?;
    console.milestone(&format!(
        "kernel settings hold, lockdown {}",
        lockdown.name()
    ));
    agent_sys::mount::share_all().map_err(broken)?;
    directory("/run/pratique", 0o700).map_err(broken)?;
    delegate_controllers();
    let image = Image::parse(&fs::read_to_string("/etc/pratique/image.toml").unwrap_or_default());
    if agent_sys::clock::unix_seconds() < image.build_time {
        warn(
            console,
            "CLOCK",
            agent_sys::clock::set_unix_seconds(image.build_time).err(),
        );
        console.milestone("clock was before the image's build time: set to it");
    }
    Ok(image)
}

/// Whose state is to be opened, with the configuration where that decides.
///
/// A state that belongs to a configuration needs it first. Any other opens before a volume is
/// mounted or a network is up, so that nothing from outside is looked at while the key can be had.
fn owner(console: &Console, image: &Image) -> Result<(Owner, Option<Found>), Fatal> {
    if image.role == "master" {
        return Ok((Owner::Master, None));
    }
    if !image.state_of_user_data {
        let configuration = None;
        return Ok((Owner::Worker { configuration }, None));
    }
    match find(console, image) {
        Ok(found) => {
            let configuration = Some(measure::digest(&found));
            Ok((Owner::Worker { configuration }, Some(found)))
        }
        Err(fatal) => state::leave_closed().and(Err(fatal)),
    }
}

/// Finds the configuration. Nothing in it is used before it is measured.
fn find(console: &Console, image: &Image) -> Result<Found, Fatal> {
    let service = agent_metadata::platform::choose(Setting::parse(&image.metadata), &cloud::dmi());
    source::find(console, service).map_err(no_configuration)
}

/// Measures the configuration and names the host by it; returns its digest.
fn configure(console: &Console, found: &Found) -> Result<[u8; 32], Fatal> {
    let name = settings::claimed_name(&found.bytes).unwrap_or_else(|| "localhost".to_owned());
    warn(
        console,
        "NAME",
        agent_sys::power::set_host_name(&name).err(),
    );
    let measurement = measure::measure(found)?;
    let digest = hex::encode(measurement.digest);
    let how = if measurement.measured {
        "measured"
    } else {
        "not measured (no TPM 2.0)"
    };
    console.milestone(&format!(
        "config {how} source={} digest={digest}",
        found.label
    ));
    Ok(measurement.digest)
}

/// What to do about a configuration that was not found.
fn no_configuration(cause: SourceError) -> Fatal {
    let cure = match cause {
        SourceError::None => {
            "attach a volume CIDATA with user-data, or set the SMBIOS string; then reboot"
        }
        SourceError::NoUserData(_) => {
            "give the machine user-data in its cloud's console or API; then reboot"
        }
        SourceError::Service(_) => "the line above says what to change; then reboot",
        SourceError::NoAnswer(_) | SourceError::Errand(..) => {
            return Fatal::retry("CONFIG", "trying again by a reboot in a minute", cause);
        }
        SourceError::Several(_) => "leave exactly one; then reboot",
        SourceError::Mount(..)
        | SourceError::Read(..)
        | SourceError::Unusable(..)
        | SourceError::Smbios(_) => "provide one plain TOML of at most 64 KiB; then reboot",
    };
    Fatal::hold("CONFIG", cure, cause)
}

/// The services of this image over an opened state.
fn table(image: &Image, state: &Opened) -> Vec<Service> {
    let mut all = vec![engine()];
    if image.role == "master" {
        all.push(master(state));
    }
    all.push(agent(state));
    all
}

/// containerd, which is contained, and with it every pod.
fn engine() -> Service {
    let service = service(
        "containerd",
        &["--config", containerd::PATH, "--log-level", "warn"],
        -999,
        ServiceOptions::default(),
    );
    Service {
        contained: true,
        program: Program {
            open_files: Some(containerd::OPEN_FILES),
            ..service.program
        },
        ..service
    }
}

fn master(state: &Opened) -> Service {
    let arguments = [
        "run",
        "--config",
        measure::CONFIGURATION,
        "--data",
        "/var/lib/pratique/master",
        "--listen",
        "[::]:6443",
        "--attestor",
        "/run/pratique/attestor.sock",
        "--state-recovery",
        state::RECOVERY,
        "--recovered-keys",
        state::RECOVERED_KEYS,
        "--config-event",
        measure::EVENT,
        "--state-generation",
        generation::PLACE,
        "--state-generation-key",
        generation::KEY,
    ];
    let admin = state
        .moved_by
        .map(|admin| format!("sha256:{}", hex::encode(admin)));
    let admin = admin
        .iter()
        .flat_map(|admin| ["--state-of", admin.as_str()]);
    let arguments: Vec<&str> = arguments.into_iter().chain(admin).collect();
    service("master", &arguments, -950, ServiceOptions::default())
}

fn agent(state: &Opened) -> Service {
    let arguments = [
        "run",
        "--config",
        measure::CONFIGURATION,
        "--data",
        "/var/lib/pratique/agent",
        "--run",
        "/run/pratique",
        "--approvals",
        &state.approvals,
        "--state-generation",
        generation::PLACE,
        "--state-generation-key",
        generation::KEY,
    ];
    // The agent ends containers through containerd with their grace; on a master's machine too,
    // which is also a node.
    service(
        "agent",
        &arguments,
        -950,
        ServiceOptions {
            may_end_machine: true,
            ends_first: true,
        },
    )
}

fn service(
    name: &'static str,
    arguments: &[&str],
    oom_score: i16,
    options: ServiceOptions,
) -> Service {
    let cgroup = format!("{CGROUPS}/pratique/{name}");
    let made = fs::create_dir_all(&cgroup).is_ok();
    let program = Program {
        path: format!("/usr/bin/{name}"),
        arguments: arguments
            .iter()
            .map(|argument| (*argument).to_owned())
            .collect(),
        environment: vec![
            ("PATH".to_owned(), SEARCH_PATH.to_owned()),
            ("HOME".to_owned(), "/var/lib/pratique".to_owned()),
        ],
        cgroup: made.then_some(cgroup),
        oom_score,
        open_files: None,
    };
    Service {
        name,
        program,
        options,
        contained: false,
    }
}

/// Lets control groups below the root, and below init's own, use every controller that the kernel
/// has.
fn delegate_controllers() {
    drop(fs::create_dir_all(format!("{CGROUPS}/pratique")));
    for group in [CGROUPS.to_owned(), format!("{CGROUPS}/pratique")] {
        let all = fs::read_to_string(format!("{group}/cgroup.controllers")).unwrap_or_default();
        for controller in all.split_ascii_whitespace() {
            // A controller that can't be delegated causes an error where it is needed.
            drop(fs::write(
                format!("{group}/cgroup.subtree_control"),
                format!("+{controller}"),
            ));
        }
    }
}

/// Writes the kernel's settings; if one that protects the machine is not in force, the boot ends
/// here.
fn harden(console: &Console) -> Result<(), Fatal> {
    let settings = Path::new(hardening::SETTINGS);
    let mut missing = hardening::apply(settings, &SYSCTLS);
    match hardening::apply_shares(settings, Path::new("/proc/meminfo")) {
        Ok(shares) => missing.extend(shares),
        Err(cause) => console.line(&Fatal::warning("KERNEL", cause)),
    }
    let mut first = None;
    for (weight, cause) in missing {
        match weight {
            Weight::Guard if first.is_none() => first = Some(cause),
            // The first one stops the boot; the others are printed, so that one boot shows them
            // all.
            Weight::Guard | Weight::Service => console.line(&Fatal::warning("KERNEL", cause)),
        }
    }
    first.map_or(Ok(()), |cause| Err(not_in_force(cause)))
}

fn not_in_force(cause: hardening::NotInForce) -> Fatal {
    Fatal::hold("KERNEL", KERNEL_CURE, cause)
}

fn warn(console: &Console, code: &'static str, cause: Option<agent_sys::Error>) {
    if let Some(cause) = cause {
        console.line(&Fatal::warning(code, cause));
    }
}

#[cfg(test)]
mod tests {
    use super::table;
    use crate::settings::Image;
    use crate::state::{MovedBy, Opened};

    #[test]
    fn only_a_master_image_runs_master() {
        let names = |role: &str| {
            let image = Image {
                role: role.to_owned(),
                ..Image::default()
            };
            table(&image, &opened(None))
                .iter()
                .map(|service| service.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names("worker"), ["containerd", "agent"]);
        assert_eq!(names("master"), ["containerd", "master", "agent"]);
    }

    fn opened(moved_by: MovedBy) -> Opened {
        Opened {
            approvals: "/dev/vda3".to_owned(),
            moved_by,
            generation: None,
        }
    }

    #[test]
    fn containerd_alone_is_contained() {
        let image = Image {
            role: "master".to_owned(),
            ..Image::default()
        };
        let inside: Vec<&str> = table(&image, &opened(None))
            .iter()
            .filter(|service| service.contained)
            .map(|service| service.name)
            .collect();
        assert_eq!(inside, ["containerd"]);
    }

    /// The kernel's limit, which init has, is 4,096: the shims of some 1,300 containers, or the
    /// levels of one folder that is removed.
    #[test]
    fn containerd_alone_has_more_open_files_than_init() {
        let image = Image {
            role: "master".to_owned(),
            ..Image::default()
        };
        let all = table(&image, &opened(None)).into_iter();
        let given = all.filter_map(|service| Some((service.name, service.program.open_files?)));
        assert_eq!(given.collect::<Vec<_>>(), [("containerd", 1_048_576)]);
    }

    #[test]
    fn a_master_gets_the_admins_key_only_for_a_state_from_another_board() {
        let image = Image {
            role: "master".to_owned(),
            ..Image::default()
        };
        let state_of = |moved_by| {
            let all = table(&image, &opened(moved_by));
            let arguments = &all[1].program.arguments;
            let at = arguments.iter().position(|word| word == "--state-of");
            at.and_then(|at| arguments.get(at + 1).cloned())
        };
        assert_eq!(state_of(None), None);
        assert_eq!(
            state_of(Some([0xAB; 32])),
            Some(format!("sha256:{}", "ab".repeat(32)))
        );
    }
}
