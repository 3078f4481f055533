//! When the schedule of a CronJob is due: parses the schedule, and finds the next and the last time
//! in its time zone.
//!
//! [`Schedule::parse`] reads a line in the syntax of upstream's library (`robfig/cron`), and says
//! in that library's words what is wrong with it ([`Fault`]). It is the one parser of schedules:
//! what the API refuses and what the controller follows come from it, and both look up time zones
//! by [`time_zone`]. Pure, except that time zones come from the machine's database, or from the
//! build's own where the machine has none: there are no tasks, and the caller gives the time. Enter
//! at [`Schedule`].

mod duration;
mod parse;
mod schedule;

pub use parse::{Fault, time_zone};
pub use schedule::{MOST_MISSED, Schedule};
