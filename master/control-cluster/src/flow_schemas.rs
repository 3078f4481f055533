//! Writes the condition `Dangling` of each FlowSchema: whether its PriorityLevelConfiguration is
//! missing.

use config_kube::k8s_openapi::api::flowcontrol::v1::{
    FlowSchema, FlowSchemaCondition, PriorityLevelConfiguration,
};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use master_client::{ApiError, Delta, Index, Key, Patch, Store, View};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::views::uid;
use master_control::writer::Writer;
use serde_json::json;
use std::sync::Arc;

const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const CONDITION: &str = "Dangling";

/// A flow schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaView {
    /// UID.
    pub uid: String,
    /// The name of its priority level.
    pub level: String,
    /// Status and message of the condition, if it has it.
    pub condition: Option<(String, String)>,
}

impl View for SchemaView {
    type Object = FlowSchema;

    fn read(schema: FlowSchema) -> Self {
        let conditions = schema.status.and_then(|status| status.conditions);
        let own = |one: &&FlowSchemaCondition| one.type_.as_deref() == Some(CONDITION);
        let condition = conditions.iter().flatten().find(own).map(|one| {
            let text = |field: &Option<String>| field.clone().unwrap_or_default();
            (text(&one.status), text(&one.message))
        });
        let spec = schema.spec;
        Self {
            uid: uid(&schema.metadata),
            level: spec.map_or_else(String::new, |spec| spec.priority_level_configuration.name),
            condition,
        }
    }
}

/// That a priority level is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LevelView;

impl View for LevelView {
    type Object = PriorityLevelConfiguration;

    fn read(_: PriorityLevelConfiguration) -> Self {
        Self
    }
}

/// Flow schemas by the name of their priority level.
static BY_LEVEL: Index<SchemaView> = Index::new("level", |_, view| vec![view.level.clone()]);

/// The controller. Its keys are flow schemas.
#[derive(Debug)]
pub struct FlowSchemas {
    schemas: Store<SchemaView>,
    levels: Store<LevelView>,
}

/// A flow schema, and whether its priority level is there.
#[derive(Debug)]
pub struct Facts {
    name: String,
    schema: Arc<SchemaView>,
    found: bool,
}

/// The action: report it.
#[derive(Debug, PartialEq, Eq)]
pub struct UpdateStatus {
    /// The object's name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Whether the level is there.
    pub found: bool,
    /// In upstream's words.
    pub message: String,
}

impl Controller for FlowSchemas {
    const NAME: &'static str = "flow-schemas";
    const RIGHTS: &'static [Right] = &[
        right(GROUP, "flowschemas", &["list", "watch"]),
        right(GROUP, "flowschemas/status", &["patch"]),
        right(GROUP, "prioritylevelconfigurations", &["list", "watch"]),
    ];
    type Facts = Facts;
    type Action = UpdateStatus;

    fn new(setup: &mut Setup<'_>) -> Self {
        let schemas: Store<SchemaView> = setup.follow_keys();
        let of_level = schemas.index(&BY_LEVEL);
        let levels = setup.follow(move |delta: &Delta<LevelView>, keys| {
            let concerned = of_level.get(&delta.key.name).into_iter();
            keys.extend(concerned.map(|(key, _)| (*key).clone()));
        });
        Self { schemas, levels }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let schema = self.schemas.get(key)?;
        Some(Facts {
            name: key.name.clone(),
            found: self.levels.get(&Key::cluster(&schema.level)).is_some(),
            schema,
        })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<UpdateStatus> {
        let (schema, found) = (&facts.schema, facts.found);
        let rest = if found {
            "and it exists"
        } else {
            "but there is no such object"
        };
        let message = format!(
            "This FlowSchema references the PriorityLevelConfiguration object named {:?} {rest}",
            schema.level
        );
        let wanted = (status(found).to_owned(), message);
        let update = (schema.condition.as_ref() != Some(&wanted)).then(|| UpdateStatus {
            name: facts.name.clone(),
            uid: schema.uid.clone(),
            found,
            message: wanted.1,
        });
        update.into()
    }

    async fn carry_out(&self, update: UpdateStatus, writer: &Writer) -> Result<(), ApiError> {
        let reason = if update.found { "Found" } else { "NotFound" };
        let condition = json!({
            "type": CONDITION, "status": status(update.found), "reason": reason, "message": update.message,
            "lastTransitionTime": Time(writer.client().now()),
        });
        let patch = json!({"metadata": {"uid": update.uid}, "status": {"conditions": [condition]}});
        let (key, patch) = (Key::cluster(&update.name), Patch::Strategic(patch));
        writer
            .patch_status::<FlowSchema>(&key, &patch)
            .await
            .map(drop)
    }
}

/// The condition says that the level is missing.
fn status(found: bool) -> &'static str {
    if found { "False" } else { "True" }
}
