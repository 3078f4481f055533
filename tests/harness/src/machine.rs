//! One virtual machine: firmware, disk overlay, software TPM, console, networks.

use crate::process::{self, Owned, run};
use crate::screen::Screen;
use crate::tools::Tools;
use crate::tpm::SoftTpm;
use crate::wait::eventually;
use crate::{Error, Result, file_error, port, qmp, stall};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Console lines after which waiting is pointless.
const STOPPED: &[&str] = &[
    "Kernel panic - not syncing",
    "Access Denied",
    "BdsDxe: No bootable option",
    "pratique: FATAL",
];
/// Lines of the console that an error shows: after a run in CI there is nothing else to read.
const LAST_LINES: usize = 30;

/// How long a station on the segment waits for a frame.
const LOOK: Duration = Duration::from_millis(200);
/// The address at which a guest reaches the host's registry.
pub const HOST_SERVICE: &str = "10.0.2.100:5000";
/// The address of clouds' metadata services.
const METADATA: &str = "169.254.169.254";
/// The address at which a guest reaches the host's discovery endpoint.
pub const HOST_DISCOVERY: &str = "10.0.2.100:8080";

/// How user-data among [`Blueprint::smbios`] begins; the base64 of the document follows.
pub const SMBIOS_CONFIG: &str = "io.pratique.config=";

/// The parts of a machine.
#[derive(Debug, Clone)]
pub struct Blueprint {
    /// Name, for files and messages.
    pub name: String,
    /// Folder for its files; made where absent.
    pub dir: PathBuf,
    /// The raw disk image; the machine writes to an overlay.
    pub image: PathBuf,
    /// Firmware variables, copied on first use.
    pub vars: PathBuf,
    /// Authority that certifies its EK.
    pub authority: PathBuf,
    /// Whether it has a TPM.
    pub has_tpm: bool,
    /// Whether it has a serial line; else it has a screen ([`Machine::screen`]), and its console
    /// file stays empty.
    pub has_serial: bool,
    /// The NoCloud volume, if any.
    pub cidata: Option<PathBuf>,
    /// User-data given through fw_cfg, if any.
    pub fw_cfg: Option<PathBuf>,
    /// SMBIOS type 11 strings.
    pub smbios: Vec<String>,
    /// The cloud that the machine is to find itself in, if any.
    pub cloud: Option<Cloud>,
    /// The time of its battery clock at power-on, such as `2020-01-01`; the host's time if `None`.
    pub clock: Option<&'static str>,
    /// Host ports handed to guest ports.
    pub forwards: Vec<(u16, u16)>,
    /// Loopback port of the host that the guest reaches at [`HOST_SERVICE`].
    pub host_service: Option<u16>,
    /// Loopback port of the host that the guest reaches at [`HOST_DISCOVERY`]. Nothing else leaves
    /// the machine.
    pub host_discovery: Option<u16>,
    /// The shared segment.
    pub segment: Segment,
    /// Memory in MiB.
    pub memory: u32,
    /// Disk size in GiB.
    pub disk: u32,
}

/// A cloud, as a machine sees it.
#[derive(Debug, Clone)]
pub struct Cloud {
    /// The machine's vendor in the firmware's tables.
    pub vendor: String,
    /// Loopback port of the host with its metadata service, which the machine reaches at the usual
    /// address; then it does not reach [`HOST_SERVICE`].
    pub metadata: u16,
}

/// How a machine is attached to the segment that machines share.
#[derive(Debug, Clone)]
pub enum Segment {
    /// Not at all.
    None,
    /// It holds the hub: one cable to each other machine.
    Hub(Vec<Cable>),
    /// It is at the far end of one of the hub's cables.
    Port(Cable),
}

/// One cable of the segment: a frame is a UDP datagram on loopback.
///
/// A datagram that the other end does not read is lost, as on a wire. A stream would fill up
/// instead, and QEMU waits for it with the whole machine: one guest that never opens its card would
/// stop the hub's.
#[derive(Debug, Clone, Copy)]
pub struct Cable {
    /// The hub's port on 127.0.0.1.
    pub hub: u16,
    /// The machine's port there.
    pub machine: u16,
}

impl Cable {
    /// A cable on two free ports.
    pub fn new() -> Result<Self> {
        Ok(Self {
            hub: port::free()?,
            machine: port::free()?,
        })
    }

    /// The machine's end, for a station of this process. A read ends without a frame after a while,
    /// so that the station can look whether it is still wanted.
    pub(crate) fn plug(self) -> Result<UdpSocket> {
        let plug = || {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, self.machine))?;
            socket.connect((Ipv4Addr::LOCALHOST, self.hub))?;
            socket.set_read_timeout(Some(LOOK))?;
            Ok(socket)
        };
        plug().map_err(|error: std::io::Error| {
            Error::Missing(format!("cannot plug a station into {self:?}: {error}"))
        })
    }

    /// QEMU's argument for one end.
    fn end(id: &str, local: u16, remote: u16) -> String {
        let (local, remote) = (inet("local", local), inet("remote", remote));
        format!("dgram,id={id},{local},{remote}")
    }
}

fn inet(end: &str, port: u16) -> String {
    format!("{end}.type=inet,{end}.host=127.0.0.1,{end}.port={port}")
}

/// A machine that was started. It can be stored as JSON, and used by another process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// Name.
    pub name: String,
    /// Folder of its files.
    pub dir: PathBuf,
    qemu: Owned,
    tpm: Option<Owned>,
}

impl Blueprint {
    /// The machine's TPM, made where absent.
    pub fn tpm(&self, tools: &Tools) -> Result<SoftTpm> {
        SoftTpm::manufacture(tools, &self.dir.join("tpm"), &self.authority)
    }

    /// Powers the machine on. State on its overlay, its variables and its TPM is kept from an
    /// earlier run.
    pub fn start(&self, tools: &Tools) -> Result<Machine> {
        std::fs::create_dir_all(&self.dir).map_err(file_error("cannot make", &self.dir))?;
        let vars = self.dir.join("vars.fd");
        if !vars.exists() {
            std::fs::copy(&self.vars, &vars).map_err(file_error(
                "cannot copy the firmware's variables",
                &self.vars,
            ))?;
        }
        self.overlay(tools)?;
        let socket = self.dir.join("tpm.sock");
        let start = || {
            self.tpm(tools)?
                .start(tools, &socket, &self.dir.join("swtpm.log"))
        };
        let tpm = self.has_tpm.then(start).transpose()?;
        let monitor = self.dir.join("qmp.sock");
        std::fs::remove_file(&monitor).ok();
        let mark = std::fs::metadata(self.console())
            .map_or(0, |file| usize::try_from(file.len()).unwrap_or(0));
        let command = self.qemu(tools, &socket, &monitor);
        let qemu = Owned::start(command, &self.dir.join("qemu.log"))?;
        let machine = Machine {
            name: self.name.clone(),
            dir: self.dir.clone(),
            qemu,
            tpm,
        };
        let hint = format!("see {}", self.dir.join("qemu.log").display());
        eventually("QEMU's monitor", Duration::from_secs(300), &hint, || {
            if machine.alive() {
                return Ok(monitor.exists().then_some(()));
            }
            Err(Error::Failed {
                program: "qemu".into(),
                status: "at start".into(),
                output: machine.qemu_log(),
            })
        })?;
        stall::watch(machine.clone(), mark);
        Ok(machine)
    }

    /// The way by which the machine gets its user-data, as it is measured; the image's own where it
    /// gets none.
    pub fn source(&self) -> &'static str {
        let smbios = self
            .smbios
            .iter()
            .any(|text| text.starts_with(SMBIOS_CONFIG));
        match (&self.fw_cfg, &self.cloud, &self.cidata) {
            (Some(_), _, _) => "fw_cfg",
            (None, Some(_), _) => "ec2",
            (None, None, _) if smbios => "smbios",
            (None, None, Some(_)) => "nocloud",
            (None, None, None) => "image",
        }
    }

    /// The path of the disk overlay.
    pub fn overlay_path(&self) -> PathBuf {
        self.dir.join("disk.qcow2")
    }

    fn overlay(&self, tools: &Tools) -> Result<()> {
        let overlay = self.overlay_path();
        if overlay.exists() {
            return Ok(());
        }
        let mut create = tools.command("qemu-img");
        create.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]);
        create
            .arg(&self.image)
            .arg(&overlay)
            .arg(format!("{}G", self.disk));
        run(create).map(drop)
    }

    fn qemu(&self, tools: &Tools, tpm: &Path, monitor: &Path) -> Command {
        let mut qemu = tools.command("qemu-system-x86_64");
        let mut arg = |flag: &str, value: String| {
            qemu.arg(flag).arg(value);
        };
        let show = |path: &Path| path.display().to_string();
        arg("-name", self.name.clone());
        // Software emulation is the only accelerator that a test may count on: /dev/kvm may open
        // and still hang.
        arg("-machine", "q35,smm=on".into());
        arg("-accel", "tcg,thread=multi".into());
        arg("-cpu", "max,la57=off".into());
        arg("-smp", "2".into());
        arg("-m", self.memory.to_string());
        arg("-display", "none".into());
        arg("-vga", "none".into());
        arg(
            "-global",
            "driver=cfi.pflash01,property=secure,value=on".into(),
        );
        self.drives(tools, &mut arg);
        self.tables(&mut arg);
        if let Some(date) = self.clock {
            arg("-rtc", format!("base={date}"));
        }
        if self.has_tpm {
            arg("-chardev", format!("socket,id=tpm,path={}", show(tpm)));
            arg("-tpmdev", "emulator,id=tpm0,chardev=tpm".into());
            arg("-device", "tpm-crb,tpmdev=tpm0".into());
        }
        if self.has_serial {
            arg(
                "-chardev",
                format!("file,id=console,append=on,path={}", show(&self.console())),
            );
            arg("-serial", "chardev:console".into());
        } else {
            arg("-serial", "none".into());
            arg("-device", "VGA,romfile=".into());
        }
        arg("-qmp", format!("unix:{},server=on,wait=off", show(monitor)));
        arg("-device", "virtio-rng-pci".into());
        self.networks(&tools.bin().join("busybox"), &mut arg);
        qemu.arg("-nodefaults").arg("-no-user-config");
        qemu
    }

    /// Firmware and its variables, the root's overlay, the volume with user-data.
    fn drives(&self, tools: &Tools, arg: &mut impl FnMut(&str, String)) {
        let show = |path: &Path| path.display().to_string();
        let code = tools.file("/usr/share/OVMF/OVMF_CODE_4M.secboot.fd");
        arg(
            "-drive",
            format!(
                "if=pflash,format=raw,unit=0,readonly=on,file={}",
                show(&code)
            ),
        );
        arg(
            "-drive",
            format!(
                "if=pflash,format=raw,unit=1,file={}",
                show(&self.dir.join("vars.fd"))
            ),
        );
        arg(
            "-drive",
            format!(
                "if=none,id=root,format=qcow2,cache=writeback,discard=unmap,file={}",
                show(&self.overlay_path())
            ),
        );
        arg("-device", "virtio-blk-pci,drive=root,bootindex=0".into());
        if let Some(volume) = &self.cidata {
            arg(
                "-drive",
                format!(
                    "if=none,id=cidata,format=raw,readonly=on,file={}",
                    show(volume)
                ),
            );
            arg("-device", "virtio-blk-pci,drive=cidata".into());
        }
    }

    /// The firmware's data for the guest: user-data in fw_cfg, and the tables of SMBIOS.
    fn tables(&self, arg: &mut impl FnMut(&str, String)) {
        if let Some(file) = &self.fw_cfg {
            arg(
                "-fw_cfg",
                format!("name=opt/io.pratique/config,file={}", file.display()),
            );
        }
        for text in &self.smbios {
            // QEMU splits at commas; a doubled one stands for itself.
            arg(
                "-smbios",
                format!("type=11,value={}", text.replace(',', ",,")),
            );
        }
        if let Some(cloud) = &self.cloud {
            arg(
                "-smbios",
                format!("type=1,manufacturer={}", cloud.vendor.replace(',', ",,")),
            );
        }
    }

    /// One card towards the host, one towards the other machines.
    fn networks(&self, relay: &Path, arg: &mut impl FnMut(&str, String)) {
        let show = |path: &Path| path.display().to_string();
        // Restricted: a guest with a wrong network configuration must not reach other hosts.
        let mut outside = "user,id=outside,restrict=on".to_owned();
        if self.cloud.is_some() {
            outside.push_str(",net=169.254.169.0/24");
        }
        let mut service = |at: &str, port: u16| {
            outside.extend([
                ",guestfwd=tcp:",
                at,
                "-cmd:",
                &show(relay),
                " nc 127.0.0.1 ",
                &port.to_string(),
            ]);
        };
        match (&self.cloud, self.host_service) {
            // QEMU forwards addresses of the card's own network only, so that network is the
            // service's.
            (Some(cloud), _) => service(&format!("{METADATA}:80"), cloud.metadata),
            (None, Some(port)) => service(HOST_SERVICE, port),
            (None, None) => {}
        }
        if let (None, Some(port)) = (&self.cloud, self.host_discovery) {
            service(HOST_DISCOVERY, port);
        }
        for (host, guest) in &self.forwards {
            outside.extend([
                ",hostfwd=tcp:127.0.0.1:",
                &host.to_string(),
                "-:",
                &guest.to_string(),
            ]);
        }
        arg("-netdev", outside);
        arg(
            "-device",
            format!("virtio-net-pci,netdev=outside,romfile=,mac={}", self.mac(0)),
        );
        self.segment(arg);
    }

    /// The card on the wire that machines share.
    fn segment(&self, arg: &mut impl FnMut(&str, String)) {
        match &self.segment {
            Segment::None => return,
            Segment::Port(cable) => {
                arg("-netdev", Cable::end("segment", cable.machine, cable.hub));
            }
            Segment::Hub(cables) => {
                for (index, cable) in cables.iter().enumerate() {
                    let slot = format!("slot{index}");
                    arg("-netdev", Cable::end(&slot, cable.hub, cable.machine));
                    arg(
                        "-netdev",
                        format!("hubport,id=port{index},hubid=0,netdev={slot}"),
                    );
                }
                arg("-netdev", "hubport,id=segment,hubid=0".into());
            }
        }
        arg(
            "-device",
            format!("virtio-net-pci,netdev=segment,romfile=,mac={}", self.mac(1)),
        );
    }

    /// The console's file.
    pub fn console(&self) -> PathBuf {
        self.dir.join("console.log")
    }

    /// A locally administered address from the machine's name, so that no two on a segment are the
    /// same.
    fn mac(&self, port: u8) -> String {
        let hash = self.name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        let [a, b, c, d] = hash.to_be_bytes();
        format!("52:{a:02x}:{b:02x}:{c:02x}:{d:02x}:{port:02x}")
    }
}

impl stall::Watched for Machine {
    fn alive(&self) -> bool {
        self.qemu.alive()
    }

    fn console_text(&self) -> String {
        Self::console_text(self)
    }

    fn console(&self) -> PathBuf {
        self.dir.join("console.log")
    }

    fn reset(&self) -> Result<()> {
        Self::reset(self)
    }
}

impl Machine {
    /// Whether QEMU still runs.
    pub fn alive(&self) -> bool {
        self.qemu.alive()
    }

    /// The console so far.
    pub fn console_text(&self) -> String {
        std::fs::read(self.dir.join("console.log"))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// What QEMU itself says.
    fn qemu_log(&self) -> String {
        std::fs::read_to_string(self.dir.join("qemu.log")).unwrap_or_default()
    }

    /// The text on its screen.
    pub fn screen(&self) -> Result<Screen> {
        let file = self.dir.join("screen.ppm");
        let arguments = json!({ "filename": file.display().to_string() });
        qmp::execute_with(&self.monitor(), "screendump", &arguments)?;
        Screen::parse(&std::fs::read(&file).map_err(file_error("cannot read", &file))?)
    }

    /// How many bytes the console has; a mark for [`Machine::wait_after`].
    pub fn mark(&self) -> usize {
        self.console_text().len()
    }

    /// Waits for a complete console line that contains `text`, and returns it; a panic or a refusal
    /// to boot ends the wait.
    pub fn wait(&self, text: &str, limit: Duration) -> Result<String> {
        self.wait_after(0, text, limit)
    }

    /// As [`Machine::wait`], from a mark on.
    pub fn wait_after(&self, mark: usize, text: &str, limit: Duration) -> Result<String> {
        let console = self.dir.join("console.log").display().to_string();
        let what = format!("{text:?} on the console of {}", self.name);
        eventually(&what, limit, &format!("see {console}"), || {
            let alive = self.alive();
            let whole = self.console_text();
            let new = whole.get(mark.min(whole.len())..).unwrap_or_default();
            // A line that is still being written may hold the text and not yet the rest that the
            // caller reads.
            let mut whole_lines = new
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n') || !alive);
            if let Some(line) = whole_lines.find(|line| line.contains(text)) {
                return Ok(Some(line.trim().to_owned()));
            }
            let stopped = new
                .lines()
                .find(|line| STOPPED.iter().any(|word| line.contains(word)));
            if let Some(line) = stopped {
                return Err(Error::Stopped {
                    machine: self.name.clone(),
                    line: line.trim().to_owned(),
                    console: console.clone(),
                    last: process::tail(&whole, LAST_LINES),
                });
            }
            if !alive {
                return Err(Error::Stopped {
                    machine: self.name.clone(),
                    line: "QEMU ended".into(),
                    console: console.clone(),
                    last: process::tail(&[whole.as_str(), &self.qemu_log()].concat(), LAST_LINES),
                });
            }
            Ok(None)
        })
    }

    /// Presses the power button and waits until the machine is off.
    pub fn power_off(&self, limit: Duration) -> Result<Duration> {
        qmp::execute(&self.monitor(), "system_powerdown")?;
        self.wait_off(limit)
    }

    /// Waits until the machine is off, and says how long that took.
    pub fn wait_off(&self, limit: Duration) -> Result<Duration> {
        let start = Instant::now();
        let hint = format!("see {}", self.dir.join("console.log").display());
        eventually(&format!("{} to power off", self.name), limit, &hint, || {
            Ok((!self.alive()).then_some(()))
        })?;
        self.end_tpm()?;
        Ok(start.elapsed())
    }

    /// Resets the machine, as the reset button does.
    pub fn reset(&self) -> Result<()> {
        qmp::execute(&self.monitor(), "system_reset").map(drop)
    }

    /// Cuts the power: no process of the machine gets to do anything more.
    pub fn cut_power(&self) -> Result<()> {
        self.qemu.kill()?;
        self.end_tpm()
    }

    fn end_tpm(&self) -> Result<()> {
        self.tpm
            .as_ref()
            .map_or(Ok(()), |tpm| tpm.stop(Duration::from_secs(5)))
    }

    /// Resident memory of QEMU in KiB.
    pub fn host_memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.qemu.pid)).ok()?;
        status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    }

    fn monitor(&self) -> PathBuf {
        self.dir.join("qmp.sock")
    }
}
