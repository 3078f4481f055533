//! Running a target over mutated seeds.

use crate::mutate::{self, Random};
use nix::time::{ClockId, clock_gettime};
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest processor time of one case, without optimisation. Other load on the machine does not
/// count.
pub const CASE_LIMIT: Duration = Duration::from_secs(5);
/// Longest wall clock time of one case: a decoder only waits for the processor.
pub const WAIT_LIMIT: Duration = Duration::from_secs(120);

/// How seeds are changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// As bytes.
    Bytes,
    /// Half of the cases inside the texts of a JSON document, half as bytes.
    Json,
}

/// Decodes bytes and forgets them.
pub type Decoder = Box<dyn Fn(&[u8])>;

/// A decoder and what to feed it.
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// How its seeds are mutated.
    pub shape: Shape,
    /// Inputs that it decodes.
    pub seeds: Vec<Vec<u8>>,
    /// Decodes. Panics on what must never be.
    pub decode: Decoder,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({}, {} seeds)", self.name, self.seeds.len())
    }
}

/// When to stop.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// After this number of cases.
    Cases(u64),
    /// After this time.
    Elapsed(Duration),
}

/// A case that failed.
#[derive(Debug, thiserror::Error)]
#[error(
    "target {target}, seed {seed}, case {case}: {what}; input (hex): {}",
    hex::encode(input)
)]
pub struct Finding {
    /// The target.
    pub target: &'static str,
    /// The run's seed.
    pub seed: u64,
    /// Which case of the run.
    pub case: u64,
    /// What happened.
    pub what: String,
    /// The input.
    pub input: Vec<u8>,
}

/// The folder of this crate with the inputs that are kept: a folder for each target.
pub fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// The inputs of a target that a corpus keeps, by their files' names; none where it has no folder.
///
/// # Errors
/// A file that can't be read.
pub fn kept(corpus: &Path, target: &str) -> io::Result<Vec<Vec<u8>>> {
    let folder = corpus.join(target);
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut files = std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<PathBuf>>>()?;
    files.sort();
    files.iter().map(std::fs::read).collect()
}

/// Keeps a find, so that every later run begins with it; returns the file.
///
/// # Errors
/// A file that can't be written.
pub fn keep(corpus: &Path, finding: &Finding) -> io::Result<PathBuf> {
    let folder = corpus.join(finding.target);
    std::fs::create_dir_all(&folder)?;
    let file = folder.join(format!("seed-{}-case-{}", finding.seed, finding.case));
    std::fs::write(&file, &finding.input)?;
    Ok(file)
}

/// Runs a target; gives the number of cases.
pub fn run(target: &Target, seed: u64, until: Until) -> Result<u64, Box<Finding>> {
    let start = Instant::now();
    let mut case = 0;
    loop {
        let done = match until {
            Until::Cases(cases) => case >= cases,
            Until::Elapsed(time) => start.elapsed() >= time,
        };
        if done {
            return Ok(case);
        }
        let input = input(target, seed, case);
        let (begun, spent) = (Instant::now(), processor());
        let result = catch_unwind(AssertUnwindSafe(|| (target.decode)(&input)));
        let (took, spent) = (begun.elapsed(), processor().saturating_sub(spent));
        let what = match result {
            Ok(()) if spent <= CASE_LIMIT && took <= WAIT_LIMIT => None,
            Ok(()) => Some(format!("took {took:?}, {spent:?} of them of the processor")),
            Err(payload) => Some(format!("panicked: {}", said(payload.as_ref()))),
        };
        if let Some(what) = what {
            return Err(Box::new(Finding {
                target: target.name,
                seed,
                case,
                what,
                input,
            }));
        }
        case += 1;
    }
}

/// This thread's processor time.
fn processor() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .expect("Linux counts each thread's time")
        .into()
}

/// The input of a case: the seeds themselves first, then mutations of them.
pub fn input(target: &Target, seed: u64, case: u64) -> Vec<u8> {
    let mut random = Random::new(seed ^ case.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let seeds = target.seeds.len();
    if let Some(seed) = usize::try_from(case)
        .ok()
        .and_then(|case| target.seeds.get(case))
    {
        return seed.clone();
    }
    let mut input = target
        .seeds
        .get(random.below(seeds))
        .cloned()
        .unwrap_or_default();
    if target.shape == Shape::Json && random.below(2) == 0 {
        mutate::json(&mut input, &mut random);
    } else {
        mutate::bytes(&mut input, &mut random);
    }
    input
}

fn said(payload: &(dyn std::any::Any + Send)) -> String {
    payload
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| {
            payload
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
        })
        .unwrap_or_else(|| "without a message".to_owned())
}
