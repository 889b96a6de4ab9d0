// What opencode's sandbox module expects of a provider, and what other providers have met. Run by node's test runner
// with BERTH_URL and its like; DIST is the compiled adapter.

import assert from "node:assert/strict"
import { execFileSync } from "node:child_process"
import { readFileSync } from "node:fs"
import { connect } from "node:net"
import { test } from "node:test"
import { setTimeout as sleep } from "node:timers/promises"

const berth = await import(`${process.env.DIST}/index.js`)
const { times } = await import(`${process.env.DIST}/client.js`)
const { BerthProvider, SessionSandboxes } = berth
const only = process.env.ONLY ?? ""
const check = (name, act) => (name.startsWith(only) ? test(name, act) : undefined)
const providers = []
const provide = (options = {}) => {
  const provider = new BerthProvider({ ...berth.addressFromEnvironment(), ...options })
  providers.push(provider)
  return provider
}
const provider = provide()
const admin = (method, path, json) => provider.shared.client.ask(method, path, { json })

test.after(async () => {
  await provide({ url: process.env.DIRECT ?? berth.addressFromEnvironment().url }).terminateAll()
  for (const each of providers) each.close()
})

/** The failure, of exactly this class. */
async function failure(kind, promise) {
  const error = await promise.then(
    () => assert.fail(`no ${kind}`),
    (caught) => caught,
  )
  assert.equal(error.name, kind, error.stack)
  assert.ok(berth[kind.replace("Sandbox", "")].isInstance(error) && error.toObject().name === kind)
  return error
}

check("life: create, get, list, terminate", async () => {
  assert.equal(await provider.healthCheck(), true)
  const box = await provider.create({ projectId: "p1", sessionId: "s/1 ü", name: "one", workdir: "/home/me/project", env: { A: "x y" } })
  assert.deepEqual([box.info.id, box.info.name, box.info.status, box.info.workdir], ["s/1 ü", "one", "running", "/home/me/project"])
  assert.deepEqual([box.info.projectId, box.info.sessionId, box.info.provider], ["p1", "s/1 ü", "berth"])
  const other = await provider.create({ projectId: "p2" })
  assert.equal((await provider.get("s/1 ü")).info.projectId, "p1")
  assert.equal(await provider.get("none"), undefined)
  await admin("POST", "/v1/workspaces", { id: "somebody-else" })
  assert.equal(await provider.get("somebody-else"), undefined)
  await failure("SandboxCreateError", provider.create({ id: "somebody-else" }))
  await failure("SandboxCreateError", provider.create({ sessionId: "s/1 ü", projectId: "p9" }))
  assert.deepEqual((await provider.list({ projectId: "p1" })).map((info) => info.id), ["s/1 ü"])
  assert.equal((await provider.list()).length, 2)
  assert.deepEqual(await provider.list({ status: "error" }), [])
  // Another process finds it, with its environment.
  const again = await provide().get("s/1 ü")
  assert.equal((await again.exec("printenv", ["A"])).stdout, "x y\n")
  await box.stop()
  assert.equal(await box.getStatus(), "stopped")
  assert.deepEqual((await provider.list({ status: "stopped" })).map((info) => info.id), ["s/1 ü"])
  await failure("SandboxTimeoutError", box.waitForStatus("running", 100))
  const started = await provider.create({ sessionId: "s/1 ü" })
  await started.waitForStatus("running", 5000)
  await provider.terminate("s/1 ü")
  assert.equal(await box.getStatus(), "terminated")
  await box.terminate()
  await failure("SandboxNotFoundError", provider.terminate("s/1 ü"))
  await failure("SandboxNotFoundError", box.exec("true", []))
  await failure("SandboxNotFoundError", box.readFile("x"))
  assert.equal(await provider.terminateAll({ projectId: "p2" }), 1)
  assert.equal(await other.getStatus(), "terminated")
})

check("life: what cannot be had is refused, and nothing is left", async () => {
  for (const config of [{ image: "debian" }, { cpu: -1 }, { memory: NaN }, { env: { "A=": "" } }, { env: { BERTH_X: "" } }, { env: { A: "x".repeat(13000) } }])
    await failure("SandboxCreateError", provider.create({ id: "refused", ...config }))
  await failure("SandboxCreateError", provide({ policy: { nonsense: 1 } }).create({ id: "refused" }))
  await failure("SandboxSnapshotError", provider.restore("none"))
  await provider.get("refused").then((box) => box?.terminate())
  assert.throws(() => new BerthProvider({ url: "http://192.0.2.1" }))
  assert.throws(() => new BerthProvider({ url: "ftp://x" }))
  const nobody = provide({ url: "unix:/nonexistent" })
  assert.equal(await nobody.healthCheck(), false)
  await failure("SandboxCreateError", nobody.create({}))
  await failure("SandboxProviderError", nobody.list())
  class Mine extends Error {
    constructor(data) {
      super(data.message)
      this.data = data
    }
  }
  const errors = Object.fromEntries(["Create", "NotFound", "Exec", "File", "Snapshot", "Provider", "Timeout"].map((name) => [`${name}Error`, Mine]))
  await assert.rejects(provide({ url: "unix:/nonexistent", errors }).create({}), Mine)
})

check("unable: a policy that the machine cannot enforce", async () => {
  await failure("SandboxCreateError", provide({ policy: { network: "none" } }).create({ id: "refused" }))
  assert.equal(await provider.get("refused"), undefined)
})

check("exec: status, output, words, input, directory", async () => {
  const box = await provider.create({ workdir: "/home/me/project" })
  const result = await box.exec("sh", ["-c", 'pwd; cat; echo "$B" >&2; exit 3'], { stdin: "in\n", env: { B: "b b" } })
  assert.deepEqual([result.exitCode, result.stdout, result.stderr], [3, "/home/me/project\nin\n", "b b\n"])
  assert.ok(result.durationMs > 0 && !result.stdoutTruncated && !result.stderrTruncated)
  assert.equal((await box.exec("printf", ["%s|", "a b", "$(id)", "'", ""])).stdout, "a b|$(id)|'||")
  assert.equal((await box.exec("echo a | tr a b; echo $((1+1))")).stdout, "b\n2\n")
  await box.writeFile("sub dir/x", "1")
  for (const cwd of ["sub dir", "/workspace/sub dir", "/home/me/project/sub dir"])
    assert.equal((await box.exec("ls", [], { cwd })).stdout, "x\n")
  assert.equal((await box.exec("pwd", [], { cwd: "/tmp" })).stdout, "/tmp\n")
  await failure("SandboxExecError", box.exec("pwd", [], { cwd: "/nonexistent" }))
  await failure("SandboxExecError", box.exec("pwd", [], { cwd: "nonexistent" }))
  const missing = await box.exec("no-such-program", [])
  assert.deepEqual([missing.exitCode, missing.stderr.includes("no-such-program")], [127, true])
  assert.equal((await box.exec("sh", ["-c", "kill -9 $$"])).exitCode, 137)
  for (const code of [66, 120, 124, 125, 126]) assert.equal((await box.exec("sh", ["-c", `exit ${code}`])).exitCode, code)
  const forged = await box.exec("sh", ["-c", `echo '{"event":"ended","verdict":"exited","exit_status":0}'; printf '0\\r\\n\\r\\n'; exit 9`])
  assert.equal(forged.exitCode, 9)
  await failure("SandboxExecError", box.exec("echo", ["a\0b"]))
  await failure("SandboxExecError", box.exec("echo", ["x".repeat(140000)]))
  await failure("SandboxExecError", box.exec("echo", [], { env: { "A B": "" } }))
  await failure("SandboxExecError", box.exec("echo", [], { timeout: -1 }))
  assert.equal((await box.exec(`: ${"x".repeat(130000)}; echo whole`)).stdout, "whole\n")
  // Names that a wrapper might have for itself.
  const env = Object.fromEntries(["t", "c", "d", "PATH", "HOME", "IFS"].map((name) => [name, `mine-${name}`]))
  assert.equal((await box.exec('echo "$t $c $d $PATH $HOME"', undefined, { env })).stdout, "mine-t mine-c mine-d mine-PATH mine-HOME\n")
  assert.deepEqual(
    await Promise.all([...Array(12).keys()].map((n) => box.exec("sh", ["-c", `echo ${n}; exit ${n}`]).then((r) => [r.stdout, r.exitCode]))),
    [...Array(12).keys()].map((n) => [`${n}\n`, n]),
  )
  await box.terminate()
})

check("output: of more than is told the end is told, and that it is", async () => {
  const box = await provide({ outputMax: 1000 }).create({})
  const result = await box.exec("seq 1 30000; echo oops >&2")
  assert.ok(result.stdoutTruncated && !result.stderrTruncated && result.stdout.length === 1000 && result.stdout.endsWith("\n30000\n"))
  assert.equal(result.stderr, "oops\n")
  const flood = await box.exec("head -c 40M /dev/zero | tr '\\0' z; echo; echo last; exit 4")
  assert.ok(flood.exitCode === 4 && flood.stdoutTruncated && flood.stdout.endsWith("z\nlast\n"))
  const error = await failure("SandboxTimeoutError", box.exec("echo first >&2; exec yes", undefined, { timeout: 700 }))
  assert.ok(error.data.stderr === "first\n" && error.data.stdout.endsWith("y\n") && error.data.stdoutTruncated && error.data.timeoutMs === 700)
  await box.terminate()
})

check("timeout: nothing is left", async () => {
  const box = await provider.create({})
  const count = () => box.exec("n=0; for f in /proc/[0-9]*/comm; do read -r c < $f 2>/dev/null; case $c in napper*|'a) Z'*) n=$((n+1));; esac; done; echo $n").then((r) => r.stdout)
  await box.exec("cp /bin/sleep napper; cp /bin/sleep 'a) Z 1 b'")
  await box.exec("./napper 4321 > /dev/null 2>&1 &")
  assert.equal(await count(), "1\n")
  const line = "trap '' TERM; for i in $(seq 40); do ./napper 4321 & done; setsid './a) Z 1 b' 4321 & (setsid sh -c './napper 4321 & ./napper 4321' &); while :; do :; done"
  const error = await failure("SandboxTimeoutError", box.exec(line, undefined, { timeout: 2000 }))
  assert.equal(error.data.timeoutMs, 2000)
  assert.equal(await count(), "1\n") // the first one is another command's
  assert.equal(await box.exists("napper"), true)
  await box.terminate()
})

check("files: both ways, everywhere in the sandbox", async () => {
  const box = await provide({ readMax: 3_000_000 }).create({ workdir: "/home/me/project" })
  const bytes = Uint8Array.from({ length: 2_500_000 }, (_, at) => (at * 7) & 255)
  for (const path of ["a/b/c.bin", "/workspace/d.bin", "/home/me/project/e.bin", "/tmp/x/f.bin"]) {
    await box.writeFile(path, bytes)
    assert.deepEqual(await box.readFileBuffer(path), bytes)
  }
  for (const name of ["plain", "two\nlines", "späße", "-n", "'\"$(id)"]) {
    await box.writeFile(`names/${name}`, name)
    assert.equal(await box.readFile(`names/${name}`), name)
  }
  const listed = await box.listFiles("/workspace/names")
  assert.deepEqual(listed.map((file) => [file.path, file.type]).sort()[0], ["/workspace/names/'\"$(id)", "file"])
  assert.equal(listed.length, 5)
  await box.exec("ln -s /tmp out; mkdir dir; ln -s dir link; truncate -s 10G huge; mkfifo fifo; seq 1 2100 | (mkdir many; cd many; xargs touch)")
  assert.equal((await box.listFiles("many")).length, 2100)
  const kinds = Object.fromEntries((await box.listFiles(".")).map((file) => [file.path, file.type]))
  assert.deepEqual([kinds.dir, kinds.link, kinds.huge], ["directory", "symlink", "file"])
  assert.deepEqual((await box.listFiles("/tmp/x")).map((file) => file.path), ["/tmp/x/f.bin"])
  assert.equal(await box.readFile("out/x/f.bin").then((text) => text.length > 0), true)
  const large = await failure("SandboxFileError", box.readFile("huge"))
  assert.deepEqual([large.data.sizeBytes, large.data.maxBytes, large.data.operation], [10 * 2 ** 30, 3_000_000, "read"])
  for (const path of ["fifo", "/dev/zero", "dir", "none", "/none", "", "a\0b", "x/".repeat(20000), "\ud800", "n".repeat(300)])
    await failure("SandboxFileError", box.readFile(path))
  for (const path of ["fifo", "/dev/zero", "dir", "a\0b", "x/".repeat(20000), "dir/"]) await failure("SandboxFileError", box.writeFile(path, "x"))
  assert.deepEqual(await Promise.all(["a/b", "none", "/tmp/x", "/tmp/none", "out/x", "huge/x"].map((path) => box.exists(path))), [true, false, true, false, true, false])
  await failure("SandboxFileError", box.deleteFile("a"))
  await box.deleteFile("a", { recursive: true })
  await box.deleteFile("/tmp/x", { recursive: true })
  await box.deleteFile("d.bin")
  assert.deepEqual(await Promise.all(["a", "/tmp/x", "d.bin"].map((path) => box.exists(path))), [false, false, false])
  await failure("SandboxFileError", box.deleteFile("d.bin"))
  await failure("SandboxFileError", box.deleteFile(".", { recursive: true }))
  assert.equal((await box.exec("echo", ["alive"])).stdout, "alive\n")
  await box.terminate()
})

check("snapshots: taken, listed, restored, deleted", async () => {
  const box = await provider.create({ projectId: "snap" })
  await box.writeFile("x", "before")
  const snapshot = await box.snapshot("first")
  await box.writeFile("x", "after")
  assert.deepEqual([snapshot.sandboxId, snapshot.name], [box.info.id, "first"])
  assert.deepEqual((await provider.listSnapshots({ sandboxId: box.info.id })).map((one) => one.id), [snapshot.id])
  assert.equal((await provider.listSnapshots({ projectId: "snap" })).length, 1)
  assert.equal((await provider.listSnapshots({ projectId: "other" })).length, 0)
  const restored = await provider.restore(snapshot.id, { projectId: "snap" })
  assert.deepEqual([await restored.readFile("x"), await box.readFile("x")], ["before", "after"])
  await provider.deleteSnapshot(snapshot.id)
  await provider.deleteSnapshot(snapshot.id)
  await failure("SandboxSnapshotError", provider.restore(snapshot.id))
  assert.equal(await provider.terminateAll({ projectId: "snap" }), 2)
})

check("sessions: one sandbox for each, whoever asks at once", async () => {
  const sessions = [0, 1, 2].map(() => new SessionSandboxes(provide(), { projectId: "race" }))
  for (const round of [1, 2]) {
    const boxes = await Promise.all([...sessions, ...sessions].map((each) => each.getOrCreateForSession(`ses_${round}`)))
    assert.deepEqual([...new Set(boxes.map((box) => box.info.id))], [`ses_${round}`])
  }
  assert.equal((await provider.list({ projectId: "race" })).length, 2)
  const [mine, other] = sessions
  assert.equal(await mine.getOrCreateForSession("ses_1"), await mine.getOrCreateForSession("ses_1"))
  assert.deepEqual([(await mine.status("ses_1")).status, (await mine.status("none")).status], ["running", "terminated"])
  assert.equal((await new SessionSandboxes(provider).getForSession("ses_2")).info.id, "ses_2")
  await other.terminateForSession("ses_1")
  assert.equal((await mine.status("ses_1")).status, "terminated")
  const again = await mine.getOrCreateForSession("ses_1")
  assert.deepEqual([await again.getStatus(), (await mine.status("ses_1")).sandbox.id], ["running", "ses_1"])
  assert.equal(await mine.terminateAll(), 2)
})

check("policy: one that is changed is noticed", async () => {
  const box = await provide({ policy: { network: "none" } }).create({})
  await box.exec("true")
  await admin("PATCH", `/v1/workspaces/${box.info.id}/policy`, { network: { allow: ["*:*"] } })
  await failure("SandboxProviderError", box.exec("touch", ["ran"]))
  assert.equal(await box.exists("ran"), false)
  await box.terminate()
})

check("worktree: a sandbox begins as a commit of a repository", async () => {
  const run = (...words) => execFileSync("git", ["-C", process.env.REPOSITORY, ...words], { encoding: "utf8" })
  run("init", "-q")
  run("commit", "-q", "--allow-empty", "-m", "first")
  const box = await provide({ berth: process.env.BERTH }).create({ gitRepo: process.env.REPOSITORY, sessionId: "tree", env: { A: "1" } })
  assert.equal((await box.exec("git", ["log", "--format=%s"])).stdout, "first\n")
  assert.equal((await box.exec("echo $A")).stdout, "1\n")
  await failure("SandboxCreateError", provide({ berth: process.env.BERTH }).create({ gitRepo: "/nonexistent" }))
  await box.terminate()
})

/** A command of the relay that BERTH_URL leads to. */
function relay(words) {
  return new Promise((resolve, reject) => {
    const socket = connect(process.env.RELAY)
    socket.on("error", reject).on("data", () => undefined).on("end", resolve)
    socket.end(`${words}\n`)
  })
}

check("relayed: lost connections change nothing", async () => {
  const box = await provider.create({})
  let over = false
  const cuts = (async () => {
    for (const pause of [100, 250, 400, 600, 900, 300, 300, 300]) {
      await sleep(pause)
      if (!over) await relay("cut")
    }
  })()
  const result = await box.exec("echo once >> ran; for i in $(seq 150); do echo $i; sleep 0.02; done; exit 6")
  over = true
  await cuts
  assert.deepEqual([result.exitCode, result.stdout], [6, [...Array(150).keys()].map((n) => `${n + 1}\n`).join("")])
  assert.equal(await box.readFile("ran"), "once\n")
  await box.terminate()
})

check("relayed: an outcome that is not known is no success", async () => {
  const box = await provider.create({})
  await box.exec("true")
  const direct = await provide({ url: process.env.DIRECT }).get(box.info.id)
  const begun = async (name) => {
    while (!(await direct.exists(name))) await sleep(50)
  }
  begun("one").then(() => process.kill(Number(readFileSync(process.env.KEEPER, "utf8")), "SIGKILL"))
  const unknown = await failure("SandboxExecError", box.exec("touch one; sleep 50"))
  assert.equal(unknown.data.outcome, "unknown")
  times.recovery = 1000
  begun("two").then(() => relay("refuse on")).then(() => relay("cut"))
  const lost = await failure("SandboxExecError", box.exec("touch two; sleep 50"))
  assert.equal(lost.data.outcome, "unknown")
  await failure("SandboxProviderError", box.readFile("x"))
  await failure("SandboxProviderError", box.getStatus())
  await relay("refuse off")
  await box.terminate()
})
