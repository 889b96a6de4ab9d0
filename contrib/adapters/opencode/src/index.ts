export * from "./contract.js"
export { BerthInstance, BerthProvider, type BerthOptions } from "./provider.js"
export { SessionSandboxes, type SessionStatus } from "./sessions.js"
export { addressFromEnvironment, type Address } from "./transport.js"
